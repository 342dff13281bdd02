/** Ready-made beginnings for the clients people use, with this server's address, model and key. */

export interface Snippet {
  title: string;
  language: string;
  note?: string;
  text: string;
}

export interface Target {
  origin: string; // "http://localhost:8080"
  model: string;
  key: string; // "" when the server asks for none
}

export function snippets({ origin, model, key }: Target): Snippet[] {
  const token = key || "none";
  const authorization = key ? ` \\\n  -H "Authorization: Bearer ${key}"` : "";
  const { port } = new URL(origin);
  return [
    {
      title: "curl",
      language: "bash",
      text: `curl -N ${origin}/v1/chat/completions${authorization} \\
  -H "Content-Type: application/json" \\
  -d '{"model": "${model}", "stream": true, "messages": [{"role": "user", "content": "Hello"}]}'`,
    },
    {
      title: "OpenAI for Python",
      language: "python",
      note: "pip install openai",
      text: `from openai import OpenAI

client = OpenAI(base_url="${origin}/v1", api_key="${token}")
stream = client.chat.completions.create(
    model="${model}",
    messages=[{"role": "user", "content": "Hello"}],
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)`,
    },
    {
      title: "Anthropic for Python",
      language: "python",
      note: "pip install anthropic",
      text: `from anthropic import Anthropic

client = Anthropic(base_url="${origin}", api_key="${token}")
with client.messages.stream(
    model="${model}",
    max_tokens=1024,
    messages=[{"role": "user", "content": "Hello"}],
) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)`,
    },
    {
      title: "Claude Code",
      language: "bash",
      text: `export ANTHROPIC_BASE_URL=${origin} ANTHROPIC_AUTH_TOKEN=${token}
export ANTHROPIC_MODEL=${model} ANTHROPIC_DEFAULT_HAIKU_MODEL=${model}
claude`,
    },
    {
      title: "Open WebUI",
      language: "bash",
      note: "On the same machine; then open http://localhost:3000.",
      text: `docker run --network host -e PORT=3000 \\
  -e OPENAI_API_BASE_URL=${origin}/v1 -e OPENAI_API_KEY=${token} \\
  ghcr.io/open-webui/open-webui:main`,
    },
    {
      title: "Continue",
      language: "yaml",
      note: "~/.continue/config.yaml",
      text: `models:
  - name: Jubako
    provider: openai
    model: ${model}
    apiBase: ${origin}/v1
    apiKey: ${token}
    roles: [chat, edit, apply]`,
    },
    {
      title: "Zed",
      language: "json",
      note: "settings.json; Zed asks for the key on first use.",
      text: `"language_models": {
  "openai_compatible": {
    "Jubako": {
      "api_url": "${origin}/v1",
      "available_models": [{ "name": "${model}", "max_tokens": 32768 }]
    }
  }
}`,
    },
    {
      title: "From another machine",
      language: "bash",
      note: "The server listens on this machine alone unless it is told otherwise. This reaches it through SSH.",
      text: `ssh -N -L ${port || 80}:127.0.0.1:${port || 80} USER@THIS-MACHINE`,
    },
  ];
}
