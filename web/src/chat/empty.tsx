import { send } from "../actions";
import { model } from "../model";
import { Stack } from "./stack";

const EXAMPLES = ["Tell me a story about a box of lacquer.", "Write a function that merges two sorted lists.", "What are the boxes of a jubako for?"];
const SMALL_EXAMPLES = ["Who are you?", "What is 347 + 288?"]; // what the model that ships was taught

/** What stands where the first message will be. */
export function Empty() {
  return (
    <section class="empty">
      <Stack />
      <h3>What lies on top is eaten first.</h3>
      <p>{model.value?.id ?? "The model"} answers from your own hardware. What you write goes nowhere else.</p>
      <ul>
        {(model.value?.id === "jubako-small" ? SMALL_EXAMPLES : EXAMPLES).map((text) => (
          <li>
            <button type="button" onClick={() => send(text, [])}>
              {text}
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}
