import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { fitHeight } from "./fit_height";

export function EditBox({ text, onSend, onCancel }: { text: string; onSend: (text: string) => void; onCancel: () => void }) {
  const [value, setValue] = useState(text);
  const area = useRef<HTMLTextAreaElement>(null);
  // at once, so that no key falls between the box and its caret
  useLayoutEffect(() => {
    area.current?.focus();
    area.current?.setSelectionRange(value.length, value.length);
  }, []);
  useEffect(() => fitHeight(area.current), [value]);
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.isComposing) return;
    if (event.key === "Escape") onCancel();
    else if (event.key === "Enter" && !event.shiftKey && value.trim()) onSend(value);
    else return;
    event.preventDefault();
  };
  return (
    <div class="box editing">
      <textarea
        ref={area}
        rows={1}
        aria-label="Edit message"
        value={value}
        onInput={(event) => setValue(event.currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      <div class="buttons">
        <button type="button" onClick={onCancel}>
          Cancel
        </button>
        <button type="button" class="primary" disabled={!value.trim()} onClick={() => onSend(value)}>
          Send
        </button>
      </div>
    </div>
  );
}
