import { useState } from "preact/hooks";
import { discard, running } from "./actions";
import type { Conversation } from "./conversation";
import { exportConversation } from "./export";
import { decimal } from "./format";
import { helpOpen } from "./keys";
import { model } from "./model";
import { go, goToConversation, goToNew, type View, view } from "./route";
import { reachable, samples } from "./status_poll";
import { listed, open, put } from "./store";
import { Icon, type IconName, Mark } from "./ui/icon";

const LINKS: readonly (readonly [View, IconName, string])[] = [
  ["chat", "chat", "Chat"],
  ["monitor", "monitor", "Monitor"],
  ["connect", "connect", "Connect"],
  ["settings", "settings", "Settings"],
];

export function Sidebar({ onChosen }: { onChosen: () => void }) {
  return (
    <aside class="sidebar" onClick={(event) => (event.target as Element).closest("a, .new") && onChosen()}>
      <div class="brand">
        <Mark />
        <h1>Jubako</h1>
      </div>
      <button type="button" class="new" onClick={goToNew}>
        <Icon name="plus" />
        New conversation
      </button>
      <nav class="conversations" aria-label="Conversations">
        <ul>
          {listed.value.map((conversation) => (
            <Entry key={conversation.id} conversation={conversation} />
          ))}
        </ul>
      </nav>
      <nav class="views" aria-label="Views">
        {LINKS.map(([name, icon, text]) => (
          <a href={`#/${name}`} aria-current={view.value === name ? "page" : undefined} onClick={(event) => follow(event, name)}>
            <Icon name={icon} />
            {text}
          </a>
        ))}
      </nav>
      <State />
    </aside>
  );
}

function follow(event: Event, name: View): void {
  event.preventDefault();
  go(name);
}

function Entry({ conversation }: { conversation: Conversation }) {
  const [renaming, setRenaming] = useState(false);
  const current = view.value === "chat" && open.value.id === conversation.id;
  const title = conversation.title || "Untitled";
  if (renaming) {
    const finish = (text: string) => {
      setRenaming(false);
      if (text.trim()) put({ ...conversation, title: text.trim() });
    };
    return (
      <li class="renaming">
        <input
          aria-label="Name of the conversation"
          defaultValue={title}
          ref={(input) => input?.select()}
          onBlur={(event) => finish(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter") finish(event.currentTarget.value);
            if (event.key === "Escape") {
              event.preventDefault();
              finish("");
            }
          }}
        />
      </li>
    );
  }
  return (
    <li class={current ? "current" : undefined}>
      <a href={`#/chat/${conversation.id}`} aria-current={current ? "true" : undefined} onClick={() => goToConversation(conversation.id)}>
        {running.value[conversation.id] && <i class="pulse" aria-label="answering" />}
        {title}
      </a>
      <span class="tools">
        <button type="button" class="tool" aria-label={`Rename ${title}`} title="Rename" onClick={() => setRenaming(true)}>
          <Icon name="edit" />
        </button>
        <button type="button" class="tool" aria-label={`Export ${title}`} title="Export" onClick={() => exportConversation(conversation)}>
          <Icon name="export" />
        </button>
        <button
          type="button"
          class="tool"
          aria-label={`Delete ${title}`}
          title="Delete"
          onClick={() => confirm(`Delete “${title}”? This can't be undone.`) && discard(conversation.id)}
        >
          <Icon name="bin" />
        </button>
      </span>
    </li>
  );
}

/** One line on how the server is. */
function State() {
  const status = samples.value.at(-1)?.status;
  const state = reachable.value === "no" ? "unreachable" : (status?.state ?? "ready");
  const speed = status?.speed?.tokens_per_second ?? 0;
  return (
    <footer class="state">
      <p>
        <i class={`lamp ${state}`} />
        {state === "ready" ? (model.value?.id ?? status?.model?.id ?? "ready") : state}
      </p>
      <p>{speed > 0 ? `${decimal(speed)} tok/s` : ""}</p>
      <button type="button" class="tool" aria-label="Keyboard shortcuts" title="Keyboard shortcuts (?)" onClick={() => (helpOpen.value = true)}>
        <kbd>?</kbd>
      </button>
    </footer>
  );
}
