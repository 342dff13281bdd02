import { useRef, useState } from "preact/hooks";
import { running } from "../actions";
import { path } from "../conversation";
import { open, storageProblem } from "../store";
import { Icon } from "../ui/icon";
import { Composer } from "./composer";
import { Empty } from "./empty";
import { KeyPrompt } from "./key_prompt";
import { MessageView } from "./message";
import { Parameters } from "./parameters";
import { useFollow } from "./follow";

export function Chat() {
  const conversation = open.value;
  const [tuning, setTuning] = useState(false);
  const tuner = useRef<HTMLButtonElement>(null);
  const closeTuning = () => {
    setTuning(false);
    tuner.current?.focus();
  };
  const messages = path(conversation);
  const { scroller, following, jump } = useFollow(conversation.id);
  return (
    <div class="chat">
      <header class="bar">
        <h2>{conversation.title || "New conversation"}</h2>
        <button ref={tuner} type="button" class="tool named" aria-label="Parameters" aria-expanded={tuning} aria-controls="parameters" onClick={() => setTuning(!tuning)}>
          <Icon name="sliders" />
          <span>Parameters</span>
        </button>
      </header>
      {tuning && <Parameters key={conversation.id} onClose={closeTuning} />}
      <div class="scroller" ref={scroller}>
        <div class="thread" role="log" aria-live="off" aria-label="Messages" aria-busy={conversation.id in running.value}>
          {messages.length === 0 && <Empty />}
          {messages.map((message) => (
            <MessageView key={message.id} message={message} conversation={conversation} />
          ))}
        </div>
      </div>
      <div class="below">
        {!following && (
          <button type="button" class="jump" onClick={jump}>
            <Icon name="down" />
            Newest
          </button>
        )}
        {storageProblem.value && (
          <p class="problem" role="alert">
            {storageProblem.value}
          </p>
        )}
        <KeyPrompt />
        <Composer key={conversation.id} />
      </div>
    </div>
  );
}
