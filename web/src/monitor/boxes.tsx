import { bytes } from "../format";
import type { Box } from "../status";
import { Bar, Legend } from "./bar";

/** The stack: each tier of memory is a box, with what lies in it. */
export function Boxes({ boxes }: { boxes: Box[] }) {
  const names = [...new Set(boxes.flatMap(({ parts }) => parts.map(({ name }) => name)))]; // the same colour in every box
  return (
    <section class="card wide boxes">
      <h3>What each box holds</h3>
      {boxes.length === 0 && <p class="hint">The server has not said yet.</p>}
      <div class="stack">
        {boxes.map((box) => {
          const slices = box.parts.map(({ name, bytes }) => ({ name, value: bytes, colour: names.indexOf(name) }));
          const held = slices.reduce((sum, { value }) => sum + value, 0);
          return (
            <div class="tier" key={box.name}>
              <p>
                <b>{box.name}</b> <span>{`${bytes(held)} of ${bytes(box.bytes)}`}</span>
              </p>
              <Bar slices={slices} whole={Math.max(box.bytes, held)} />
              <Legend slices={slices} format={bytes} />
            </div>
          );
        })}
      </div>
    </section>
  );
}
