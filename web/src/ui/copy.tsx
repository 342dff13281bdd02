import { useState } from "preact/hooks";
import { announce } from "../announce";
import { copyText } from "../clipboard";
import { Icon } from "./icon";

/** Copies `text` and says so for a moment. */
export function CopyButton({ text, label = "Copy", quiet = false }: { text: string; label?: string; quiet?: boolean }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    const copied = await copyText(text);
    announce(copied ? "Copied." : "This browser does not let the page copy.");
    setDone(copied);
    setTimeout(() => setDone(false), 1500);
  };
  return (
    <button type="button" class={quiet ? "tool" : "tool named"} onClick={copy} aria-label={label} title={label}>
      <Icon name={done ? "check" : "copy"} />
      {!quiet && <span>{done ? "Copied" : "Copy"}</span>}
    </button>
  );
}
