import { useState } from "preact/hooks";
import { edit, regenerate, running, showVersion } from "../actions";
import { type Conversation, type Message, versions } from "../conversation";
import { Markdown } from "../markdown";
import { CodeBlock } from "../ui/code";
import { CopyButton } from "../ui/copy";
import { Icon } from "../ui/icon";
import { EditBox } from "./edit_box";
import { FiguresLine } from "./figures";
import { Progress } from "./progress";
import { Thinking } from "./thinking";

interface Props {
  message: Message;
  conversation: Conversation;
}

export function MessageView(props: Props) {
  return props.message.role === "user" ? <Question {...props} /> : <Answer {...props} />;
}

function Question({ message, conversation }: Props) {
  const [editing, setEditing] = useState(false);
  const busy = conversation.id in running.value;
  return (
    <article class="message question" aria-label="You">
      {editing ? (
        <EditBox
          text={message.text}
          onCancel={() => setEditing(false)}
          onSend={(text) => {
            setEditing(false);
            edit(message, text);
          }}
        />
      ) : (
        <div class="box">
          {message.attachments?.map(({ name, text }) => (
            <details class="attached">
              <summary>{name}</summary>
              <pre tabIndex={0}>{text}</pre>
            </details>
          ))}
          <p class="plain">{message.text}</p>
        </div>
      )}
      <footer class="actions">
        <Versions message={message} conversation={conversation} />
        <CopyButton quiet text={message.text} label="Copy message" />
        <button type="button" class="tool" aria-label="Edit message" title="Edit" disabled={busy} onClick={() => setEditing(true)}>
          <Icon name="edit" />
        </button>
      </footer>
    </article>
  );
}

function Answer({ message, conversation }: Props) {
  const run = running.value[conversation.id];
  const live = run?.message === message.id;
  const silent = live && !message.text && !message.thinking;
  return (
    <article class={live ? "message answer live" : "message answer"} aria-label="Jubako" aria-busy={live}>
      {message.thinking && (
        <Thinking text={message.thinking} seconds={message.thinkingSeconds} live={live && !message.text} />
      )}
      {message.text && (message.json ? <CodeBlock text={message.text} language="json" /> : <Markdown text={message.text} />)}
      {silent && <Progress reading={run.reading} />}
      {message.error && (
        <p class="problem" role="alert">
          {message.error}
        </p>
      )}
      {!live && <Ending message={message} />}
      {!live && (
        <footer class="actions">
          <Versions message={message} conversation={conversation} />
          <CopyButton quiet text={message.text} label="Copy answer" />
          <button
            type="button"
            class={message.error ? "tool named" : "tool"}
            aria-label={message.error ? "Try again" : "Regenerate answer"}
            title={message.error ? "Try again" : "Regenerate"}
            disabled={run !== undefined}
            onClick={() => regenerate(message)}
          >
            <Icon name="again" />
            {message.error && <span>Try again</span>}
          </button>
          {message.figures && <FiguresLine figures={message.figures} />}
        </footer>
      )}
    </article>
  );
}

/** Why an answer is shorter than one would expect. */
function Ending({ message: { finish, text, thinking, error } }: { message: Message }) {
  if (finish === "stopped") return <p class="note">Stopped.</p>;
  if (finish === "length") {
    return (
      <p class="note">
        {text || !thinking ? "Cut off by the token limit." : "The token limit was used up by thinking."} Raise “Max tokens” under Parameters for more.
      </p>
    );
  }
  if (!text && !thinking && !error) return <p class="note">The answer is empty.</p>;
  return null;
}

function Versions({ message, conversation }: Props) {
  const all = versions(conversation, message);
  if (all.length < 2) return null;
  const place = all.findIndex(({ id }) => id === message.id);
  const button = (by: -1 | 1, label: string) => {
    const other = all[place + by];
    return (
      <button type="button" class="tool" aria-label={label} disabled={!other} onClick={() => other && showVersion(other.id)}>
        <Icon name={by < 0 ? "left" : "right"} />
      </button>
    );
  };
  return (
    <span class="versions">
      {button(-1, "Previous version")}
      <span>
        {place + 1} / {all.length}
      </span>
      {button(1, "Next version")}
    </span>
  );
}
