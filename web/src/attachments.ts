/** Files as text in a question. */

import type { Attachment } from "./conversation";
import { bytes } from "./format";

export const LIMIT_BYTES = 500_000; // each file; a browser keeps about five million in all

/** The file's text. Throws an Error that says in words why it can't be one. */
export async function readAttachment(file: File): Promise<Attachment> {
  if (file.size > LIMIT_BYTES) throw new Error(`${file.name} is ${bytes(file.size)}; files can be up to ${bytes(LIMIT_BYTES)}.`);
  return { name: file.name, text: decodeText(file.name, new Uint8Array(await file.arrayBuffer())) };
}

/** UTF-8, or UTF-16 with its mark; anything else is no text. */
export function decodeText(name: string, data: Uint8Array): string {
  const encoding = data[0] === 0xff && data[1] === 0xfe ? "utf-16le" : data[0] === 0xfe && data[1] === 0xff ? "utf-16be" : "utf-8";
  let text: string;
  try {
    text = new TextDecoder(encoding, { fatal: true }).decode(data);
  } catch {
    throw new Error(`${name} is not a text file.`);
  }
  if (text.includes("\0")) throw new Error(`${name} is not a text file.`);
  return text;
}
