import { discard } from "./actions";
import { apiKey, keyWanted, setApiKey } from "./api";
import { exportAll } from "./export";
import { bytes, count } from "./format";
import { loadModel, model } from "./model";
import { samples } from "./status_poll";
import { listed } from "./store";
import { type Theme, theme } from "./theme";
import { Choice } from "./ui/field";

const THEMES: readonly (readonly [Theme, string])[] = [
  ["system", "As the system"],
  ["light", "Light"],
  ["dark", "Dark"],
];

export function SettingsPage() {
  const status = samples.value.at(-1)?.status;
  const kept = listed.value;
  const size = kept.reduce((sum, conversation) => sum + JSON.stringify(conversation).length, 0);
  return (
    <div class="page settings">
      <h2>Settings</h2>
      <section class="card">
        <h3>Look</h3>
        <Choice label="Colours" options={THEMES} value={theme.value} onChange={(value) => (theme.value = value)} />
      </section>
      <section class="card">
        <h3>API key</h3>
        <p>{keyWanted.value ? "The server asks for one." : "Needed only when the server was started with one. It is kept in this browser."}</p>
        <div class="field">
          <label for="api-key">Key</label>
          <input
            id="api-key"
            type="password"
            autocomplete="off"
            value={apiKey.value}
            onChange={(event) => {
              setApiKey(event.currentTarget.value);
              loadModel().catch(() => undefined);
            }}
          />
        </div>
      </section>
      <section class="card">
        <h3>Conversations</h3>
        <p>
          {count(kept.length)} kept in this browser, {bytes(size)}. The server keeps none.
        </p>
        <div class="buttons">
          <button type="button" disabled={kept.length === 0} onClick={() => exportAll(kept)}>
            Export all
          </button>
          <button
            type="button"
            class="danger"
            disabled={kept.length === 0}
            onClick={() => confirm(`Delete all ${kept.length} conversations? This can't be undone.`) && kept.forEach(({ id }) => discard(id))}
          >
            Delete all
          </button>
        </div>
      </section>
      <section class="card">
        <h3>Server</h3>
        <dl class="facts">
          <Fact name="Model" value={model.value?.id ?? status?.model?.id} />
          <Fact name="Context" value={tokens(model.value?.context ?? status?.model?.context)} />
          <Fact name="Device" value={status?.model?.device} />
          <Fact name="Version" value={status?.version} />
          <Fact name="Address" value={location.origin} />
        </dl>
      </section>
    </div>
  );
}

function tokens(value: number | undefined): string | undefined {
  return value === undefined ? undefined : `${count(value)} tokens`;
}

function Fact({ name, value }: { name: string; value: string | undefined }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value ?? "–"}</dd>
    </div>
  );
}
