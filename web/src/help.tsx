import { helpOpen, SHORTCUTS } from "./keys";
import { Dialog } from "./ui/dialog";

export function Help() {
  return (
    <Dialog title="Keyboard" onClose={() => (helpOpen.value = false)}>
      <dl class="shortcuts">
        {SHORTCUTS.map(([keys, what]) => (
          <div>
            <dt>
              <kbd>{keys}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
