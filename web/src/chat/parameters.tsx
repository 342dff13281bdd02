import type { Effort } from "../conversation";
import { changeSettings, open } from "../store";
import { Choice, NumberField } from "../ui/field";
import { Icon } from "../ui/icon";

const EFFORTS: readonly (readonly [Effort, string])[] = [
  ["default", "Default"],
  ["none", "Off"],
  ["low", "Low"],
  ["medium", "Medium"],
  ["high", "High"],
];

const FORMATS = [
  ["text", "Text"],
  ["json", "JSON"],
] as const;

/** How the open conversation is answered. */
export function Parameters({ onClose }: { onClose: () => void }) {
  const { system, temperature, topP, maxTokens, seed, effort, json } = open.value.settings;
  return (
    <section
      id="parameters"
      class="parameters"
      aria-label="Parameters"
      onKeyDown={(event) => {
        if (event.key !== "Escape") return;
        event.preventDefault(); // an answer goes on
        onClose();
      }}
    >
      <header>
        <h3>Parameters</h3>
        <button type="button" class="tool" aria-label="Close parameters" onClick={onClose}>
          <Icon name="close" />
        </button>
      </header>
      <div class="field wide">
        <label for="system">System prompt</label>
        <textarea id="system" rows={3} value={system} placeholder="none" onInput={(event) => changeSettings({ system: event.currentTarget.value })} />
      </div>
      <Choice label="Thinking" options={EFFORTS} value={effort} onChange={(value) => changeSettings({ effort: value })} />
      <Choice
        label="Answer as"
        options={FORMATS}
        value={json ? "json" : "text"}
        onChange={(value) => changeSettings({ json: value === "json" })}
      />
      <div class="numbers">
        <NumberField
          label="Temperature"
          hint="0 always takes the likeliest token."
          value={temperature}
          range={{ min: 0, max: 2 }}
          onChange={(value) => changeSettings({ temperature: value })}
        />
        <NumberField
          label="Top-p"
          hint="Share of likelihood drawn from."
          value={topP}
          range={{ min: 0, max: 1 }}
          onChange={(value) => changeSettings({ topP: value })}
        />
        <NumberField
          label="Max tokens"
          hint="Thinking counts too."
          value={maxTokens}
          range={{ min: 1, max: 262_144, whole: true }}
          onChange={(value) => changeSettings({ maxTokens: value })}
        />
        <NumberField
          label="Seed"
          hint="The same seed, the same answer."
          value={seed}
          range={{ min: 0, max: 2 ** 53 - 1, whole: true }}
          onChange={(value) => changeSettings({ seed: value })}
        />
      </div>
    </section>
  );
}
