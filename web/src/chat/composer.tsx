import { useEffect, useRef, useState } from "preact/hooks";
import { running, send, stop } from "../actions";
import { announce } from "../announce";
import { readAttachment } from "../attachments";
import type { Attachment } from "../conversation";
import { bytes } from "../format";
import { nameConversation } from "../route";
import { open } from "../store";
import { Icon } from "../ui/icon";
import { fitHeight } from "./fit_height";
import { useDrop } from "./drop";

interface Draft {
  text: string;
  files: Attachment[];
}

/** What is written but not sent, by conversation, while another view is looked at. */
const drafts = new Map<string, Draft>();

export function Composer() {
  const { id } = open.value;
  const [text, setText] = useState(drafts.get(id)?.text ?? "");
  const [files, setFiles] = useState(drafts.get(id)?.files ?? []);
  const [problem, setProblem] = useState("");
  const area = useRef<HTMLTextAreaElement>(null);
  const chooser = useRef<HTMLInputElement>(null);
  const busy = id in running.value;
  const ready = text.trim() !== "" || files.length > 0;

  useEffect(() => fitHeight(area.current), [text]);
  useEffect(() => void drafts.set(id, { text, files }), [text, files]);
  useEffect(() => {
    if (matchMedia("(hover: hover)").matches) area.current?.focus(); // on a phone the keyboard would jump up
  }, []);

  const attach = async (chosen: Iterable<File>) => {
    setProblem("");
    for (const file of chosen) {
      try {
        const attachment = await readAttachment(file);
        setFiles((before) => [...before, attachment]);
        announce(`${attachment.name} is attached.`);
      } catch (error) {
        setProblem((error as Error).message);
      }
    }
  };
  const dropping = useDrop(attach);
  const submit = () => {
    if (busy || !ready) return;
    send(text, files);
    setText("");
    setFiles([]);
    nameConversation(id);
  };

  return (
    <form
      class={dropping ? "composer dropping" : "composer"}
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      {files.length > 0 && (
        <ul class="files" aria-label="Attached files">
          {files.map((file, index) => (
            <li>
              {file.name} <small>{bytes(file.text.length)}</small>
              <button type="button" class="tool" aria-label={`Remove ${file.name}`} onClick={() => setFiles(files.filter((_, at) => at !== index))}>
                <Icon name="close" />
              </button>
            </li>
          ))}
        </ul>
      )}
      <textarea
        id="composer"
        ref={area}
        rows={1}
        aria-label="Message"
        placeholder={dropping ? "Drop text files here" : "Write a message"}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
          event.preventDefault();
          submit();
        }}
      />
      <div class="buttons">
        <button type="button" class="tool" aria-label="Attach text files" title="Attach text files" onClick={() => chooser.current?.click()}>
          <Icon name="attach" />
        </button>
        <input
          ref={chooser}
          type="file"
          multiple
          class="offscreen"
          tabIndex={-1}
          aria-hidden="true"
          onChange={(event) => {
            attach([...(event.currentTarget.files ?? [])]); // a copy: the list empties with the next line
            event.currentTarget.value = "";
          }}
        />
        {busy ? (
          <button type="button" class="go stop" aria-label="Stop" title="Stop (Escape)" onClick={() => stop()}>
            <Icon name="stop" />
          </button>
        ) : (
          <button type="submit" class="go" aria-label="Send" title="Send (Enter)" disabled={!ready}>
            <Icon name="send" />
          </button>
        )}
      </div>
    </form>
  );
}
