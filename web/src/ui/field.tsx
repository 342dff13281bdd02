import type { ComponentChildren } from "preact";
import { useId, useState } from "preact/hooks";

interface Range {
  min: number;
  max: number;
  whole?: boolean;
}

/** A number that may be left to the server (empty is null). What can't be read is not taken over, and said. */
export function NumberField(props: { label: string; hint: string; value: number | null; range: Range; onChange: (value: number | null) => void }) {
  const { label, hint, value, range, onChange } = props;
  const id = useId();
  const [text, setText] = useState(value === null ? "" : String(value));
  const problem = text.trim() === "" ? "" : check(Number(text), range);
  const take = (next: string) => {
    setText(next);
    if (next.trim() === "") onChange(null);
    else if (!check(Number(next), range)) onChange(Number(next));
  };
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <input
        id={id}
        type="text"
        inputMode={range.whole ? "numeric" : "decimal"}
        value={text}
        placeholder="default"
        aria-invalid={problem !== ""}
        aria-describedby={`${id}-hint`}
        onInput={(event) => take(event.currentTarget.value)}
      />
      <p id={`${id}-hint`} class={problem ? "hint bad" : "hint"}>
        {problem || hint}
      </p>
    </div>
  );
}

function check(value: number, { min, max, whole }: Range): string {
  if (!Number.isFinite(value)) return "This is not a number.";
  if (whole && !Number.isInteger(value)) return "This must be a whole number.";
  if (value < min || value > max) return `This must lie between ${min} and ${max}.`;
  return "";
}

/** One of several, shown side by side. */
export function Choice<T extends string>(props: {
  label: string;
  options: readonly (readonly [T, string])[];
  value: T;
  onChange: (value: T) => void;
  children?: ComponentChildren;
}) {
  const name = useId();
  return (
    <fieldset class="field choice">
      <legend>{props.label}</legend>
      <div class="options">
        {props.options.map(([value, text]) => (
          <label>
            <input type="radio" name={name} checked={props.value === value} onChange={() => props.onChange(value)} />
            <span>{text}</span>
          </label>
        ))}
      </div>
      {props.children}
    </fieldset>
  );
}
