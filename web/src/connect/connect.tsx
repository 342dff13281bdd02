import { apiKey } from "../api";
import { model } from "../model";
import { CodeBlock } from "../ui/code";
import { CopyButton } from "../ui/copy";
import { snippets } from "./snippets";

export function Connect() {
  const target = { origin: location.origin, model: model.value?.id ?? "default", key: apiKey.value };
  return (
    <div class="page connect">
      <h2>Connect your client</h2>
      <p class="lead">Anything that speaks the OpenAI or the Anthropic interface works. It needs an address, and a key if the server has one.</p>
      <dl class="addresses">
        <Address name="OpenAI" value={`${target.origin}/v1`} />
        <Address name="Anthropic" value={target.origin} />
        <Address name="Model" value={target.model} />
      </dl>
      {snippets(target).map(({ title, language, note, text }) => (
        <section>
          <h3>{title}</h3>
          {note && <p class="hint">{note}</p>}
          <CodeBlock text={text} language={language} />
        </section>
      ))}
    </div>
  );
}

function Address({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>
        <code>{value}</code>
        <CopyButton quiet text={value} label={`Copy ${name}`} />
      </dd>
    </div>
  );
}
