import { render } from "preact";
import { App } from "./app";
import { listenForShortcuts } from "./keys";
import { loadModel } from "./model";
import { followAddress } from "./route";
import { startPolling } from "./status_poll";
import "./theme";
import "./styles/index.css";

followAddress();
listenForShortcuts();
startPolling();
loadModel().catch(() => undefined); // asked again with the first message
render(<App />, document.getElementById("page")!);
