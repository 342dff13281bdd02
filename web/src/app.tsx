import { useEffect, useState } from "preact/hooks";
import { announcement } from "./announce";
import { Chat } from "./chat/chat";
import { Connect } from "./connect/connect";
import { helpOpen } from "./keys";
import { Monitor } from "./monitor/monitor";
import { type View, view } from "./route";
import { SettingsPage } from "./settings";
import { Help } from "./help";
import { Sidebar } from "./sidebar";
import { Icon, Mark } from "./ui/icon";

const TITLES: Record<View, string> = { chat: "Chat", monitor: "Monitor", connect: "Connect", settings: "Settings" };
const PAGES: Record<View, () => preact.JSX.Element> = { chat: Chat, monitor: Monitor, connect: Connect, settings: SettingsPage };

export function App() {
  const [menu, setMenu] = useState(false);
  const Page = PAGES[view.value];
  useEffect(() => {
    document.title = view.value === "chat" ? "Jubako" : `${TITLES[view.value]} · Jubako`;
  }, [view.value]);
  return (
    <>
      <a class="skip" href="#content" onClick={skip}>
        Skip to the content
      </a>
      <div
        class={menu ? "app menu-open" : "app"}
        onKeyDown={(event) => {
          if (event.key !== "Escape" || !menu) return;
          event.preventDefault();
          setMenu(false);
        }}
      >
        <header class="top">
          <button type="button" class="tool" aria-label="Menu" aria-expanded={menu} onClick={() => setMenu(!menu)}>
            <Icon name={menu ? "close" : "menu"} />
          </button>
          <Mark />
          <h1>{view.value === "chat" ? "Jubako" : TITLES[view.value]}</h1>
        </header>
        <Sidebar onChosen={() => setMenu(false)} />
        <button type="button" class="shade" tabIndex={-1} aria-hidden="true" onClick={() => setMenu(false)} />
        <main id="content" tabIndex={view.value === "chat" ? -1 : 0}>
          <Page />
        </main>
      </div>
      {helpOpen.value && <Help />}
      <p class="offscreen" role="status" aria-live="polite">
        {announcement.value}
      </p>
    </>
  );
}

/** The address holds the view, so the skip link moves the focus itself. */
function skip(event: Event): void {
  event.preventDefault();
  (document.getElementById("composer") ?? document.getElementById("content"))?.focus();
}
