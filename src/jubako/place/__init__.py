"""What goes where on this machine: measured rates (`machine`, `probe`), what a model asks for (`census`), the plan with
its predicted speed (`plan`, `fit`, `speed`), published models (`known`, `pull`)."""
