/** A modest painter of code: comments, strings, numbers and words of the language; enough to read by, wrong nowhere that matters. */

export interface Piece {
  kind: "comment" | "string" | "number" | "word" | null;
  text: string;
}

const WORDS = new Set(
  (
    "abstract and as assert async await begin bool boolean break case catch char class const continue crate def default defer del do done " +
    "double elif else end enum esac except export extends extern false False fi final finally float fn for from func function global go " +
    "goto if impl implements import in instanceof int interface is lambda let long loop match mod module mut namespace new nil None " +
    "nonlocal not null of operator or package pass private protected pub public raise readonly ref return self Self short signed sizeof " +
    "static struct super switch template then this throw throws trait true True try type typedef typename typeof union unsafe unsigned use " +
    "using var virtual void volatile when where while with yield"
  ).split(" "),
);
const SQL = new Set(
  "alter and as by case create delete desc distinct drop else end exists from group having in index inner insert into is join key left like limit not null on or order outer primary select set table then union update values view when where with".split(" "),
);

const STRINGS = String.raw`"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'|\`(?:\\.|[^\`\\])*\`?`;
const REST = String.raw`|(\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\b)|([A-Za-z_]\w*)`;
const HASH = "#.*";
const SLASHES = String.raw`//.*|/\*[^]*?(?:\*/|$)`;
const DASHES = String.raw`--.*|/\*[^]*?(?:\*/|$)`;

/** What begins a comment, by language; languages that are not here are shown plain. */
const COMMENTS: Record<string, string> = {};
for (const name of "python py bash sh shell zsh yaml yml toml ruby rb r dockerfile makefile perl".split(" ")) COMMENTS[name] = HASH;
for (const name of "c cpp c++ cc h java javascript js jsx typescript ts tsx rust rs go swift kotlin kt csharp cs php scala dart json css".split(" ")) COMMENTS[name] = SLASHES;
for (const name of ["sql", "lua", "haskell", "hs"]) COMMENTS[name] = DASHES;

/** The text in pieces that join to it again. */
export function highlight(text: string, language: string): Piece[] {
  const name = language.toLowerCase();
  const comment = COMMENTS[name];
  if (comment === undefined) return [{ kind: null, text }];
  const pattern = new RegExp(`(${comment})|(${STRINGS})${REST}`, "g");
  const pieces: Piece[] = [];
  let from = 0;
  for (const match of text.matchAll(pattern)) {
    const kind = match[1] !== undefined ? "comment" : match[2] !== undefined ? "string" : match[3] !== undefined ? "number" : "word";
    if (kind === "word" && !isWord(match[0], name)) continue;
    if (match.index > from) pieces.push({ kind: null, text: text.slice(from, match.index) });
    pieces.push({ kind, text: match[0] });
    from = match.index + match[0].length;
  }
  if (from < text.length) pieces.push({ kind: null, text: text.slice(from) });
  return pieces;
}

function isWord(word: string, language: string): boolean {
  return language === "sql" ? SQL.has(word.toLowerCase()) : WORDS.has(word);
}
