import { useState } from "preact/hooks";
import { keyWanted, setApiKey } from "../api";
import { loadModel } from "../model";

/** Asks for the key once the server wants one. */
export function KeyPrompt() {
  const [key, setKey] = useState("");
  if (!keyWanted.value) return null;
  const submit = (event: Event) => {
    event.preventDefault();
    setApiKey(key);
    loadModel().catch(() => undefined);
  };
  return (
    <form class="key" onSubmit={submit}>
      <label for="key-prompt">The server asks for an API key.</label>
      <input id="key-prompt" type="password" autocomplete="off" value={key} onInput={(event) => setKey(event.currentTarget.value)} />
      <button type="submit" class="primary" disabled={!key.trim()}>
        Use it
      </button>
    </form>
  );
}
