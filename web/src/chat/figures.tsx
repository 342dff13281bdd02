import type { Figures } from "../conversation";
import { count, decimal, percent } from "../format";

/** What an answer took, in one line. */
export function FiguresLine({ figures }: { figures: Figures }) {
  const { promptTokens, cachedTokens, answerTokens, thinkingTokens, tokensPerSecond, drafted, accepted } = figures;
  const parts: string[] = [];
  if (answerTokens !== undefined) parts.push(`${count(answerTokens)} tokens`);
  if (thinkingTokens) parts.push(`${count(thinkingTokens)} of them thinking`);
  if (tokensPerSecond) parts.push(`${decimal(tokensPerSecond)} tok/s`);
  if (promptTokens !== undefined) parts.push(`prompt ${count(promptTokens)}`);
  if (cachedTokens) parts.push(`${percent(cachedTokens, promptTokens)} remembered`);
  if (drafted) parts.push(`drafts ${percent(accepted, drafted)} accepted`);
  return <span class="figures">{parts.join(" · ")}</span>;
}
