import { render } from "preact-render-to-string";
import { describe, expect, it } from "vitest";
import { BlockReader } from "../src/blocks";
import { isSafeAddress, Markdown } from "../src/markdown";

const html = (text: string) => render(<Markdown text={text} />);
const ALLOWED = /^(div|p|h[3-6]|ul|ol|li|a|strong|em|del|code|pre|figure|figcaption|span|button|svg|path|blockquote|hr|br|table|thead|tbody|tr|th|td|input)$/;

/** Names of all elements in rendered HTML. */
const elements = (rendered: string) => [...rendered.matchAll(/<([a-z][\w-]*)/gi)].map((match) => match[1]!);

/** The text between the tags. */
const plain = (rendered: string) => rendered.replace(/<[^>]*>/g, "");

const HOSTILE = [
  "<script>alert(1)</script>",
  "text <img src=x onerror=alert(1)> text",
  "<svg/onload=alert(1)>",
  "- <iframe srcdoc='<script>x</script>'></iframe>\n- two",
  "| <b>a</b> |\n|---|\n| <object data=x> |",
  "> <style>*{display:none}</style>",
  "[x](javascript:alert(1)) [y](JaVaScRiPt:alert(1)) [z](data:text/html,<script>x</script>)",
  "[x](&#106;avascript:alert(1)) [y](java\nscript:alert(1)) [v](vbscript:x) <javascript:alert(1)>",
  "![x](javascript:alert(1)) ![pixel](https://example.org/track.png)",
  '[x](https://example.org/"onmouseover="alert(1))',
  "[ref][1]\n\n[1]: javascript:alert(1)",
  "```<img src=x>\n</code></pre><script>alert(1)</script>\n```",
  "&lt;script&gt;alert(1)&lt;/script&gt;",
  "# <math><mtext></table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=alert(1)&gt;'>",
  "<!-- <script>alert(1)</script> -->",
  "<details open ontoggle=alert(1)>",
];

describe("hostile text", () => {
  it.each(HOSTILE)("%s makes only plain elements and safe addresses", (text) => {
    const rendered = html(text);
    for (const name of elements(rendered)) expect(name).toMatch(ALLOWED);
    for (const [, attribute] of rendered.matchAll(/<[a-z][^>]*?\s(on\w+|srcdoc|style|src)=/gi)) expect(attribute).toBeUndefined();
    for (const [, address] of rendered.matchAll(/href="([^"]*)"/g)) expect(isSafeAddress(address!)).toBe(true);
  });

  it("shows HTML as the text it is", () => {
    expect(html("a <b>bold</b> word")).toContain("a &lt;b>bold&lt;/b> word");
  });

  it("never fetches an image", () => {
    expect(html("![a cat](https://example.org/cat.png)")).not.toContain("<img");
  });
});

describe("endless nesting", () => {
  it.each([
    ["quotes", "> ".repeat(3000)],
    ["lists", Array.from({ length: 300 }, (_, level) => `${" ".repeat(2 * level)}- a`).join("\n")],
    ["emphasis", "*a _b ".repeat(2000)],
    ["brackets", "[".repeat(5000)],
  ])("of %s is drawn, and soon", (_, text) => {
    const before = performance.now();
    expect(plain(html(text)).length).toBeGreaterThan(0);
    expect(performance.now() - before).toBeLessThan(5000);
  });
});

describe("a growing text", () => {
  const text = "# A\r\n\none\ntwo\n\n- a\n\n- b\n\n  c\n- d\n\n```py\nx\n\ny\n```\n\n| a | b |\n|--|--|\n| 1 | 2 |\n\n> q\nlazy\n\n1. x\n\n\n2. y\n\nend **bold** <b>x</b>\n***\n    code\n";

  it("has the same blocks as when it is read at once", () => {
    const whole = (part: string) => new BlockReader().read(part).map(({ type, raw }) => [type, raw]);
    for (const size of [1, 3, 7]) {
      const growing = new BlockReader();
      for (let end = size; end < text.length + size; end += size) {
        const part = text.slice(0, end);
        expect(growing.read(part).map(({ type, raw }) => [type, raw])).toEqual(whole(part));
      }
    }
  });

  it("keeps the blocks that are complete", () => {
    const reader = new BlockReader();
    const first = reader.read("a\n\nb\n\nc\n\nd")[0];
    expect(reader.read("a\n\nb\n\nc\n\nd more")[0]).toBe(first);
    expect(reader.read("another")[0]).not.toBe(first);
  });
});

describe("addresses", () => {
  it.each(["https://example.org", "http://localhost:8080/x", "mailto:a@example.org"])("%s is safe", (address) => {
    expect(isSafeAddress(address)).toBe(true);
  });

  it.each(["javascript:alert(1)", " javascript:alert(1)", "data:text/html,x", "blob:x", "file:///etc/passwd", "/v1/models", "//example.org", ""])(
    "%s is not",
    (address) => {
      expect(isSafeAddress(address)).toBe(false);
    },
  );
});

describe("ordinary text", () => {
  it("has emphasis, code and lists", () => {
    expect(html("**a** *b* ~~c~~ `d`")).toContain("<strong>a</strong> <em>b</em> <del>c</del> <code>d</code>");
    expect(html("3. x\n4. y")).toContain('<ol start="3"><li>x</li><li>y</li></ol>');
    expect(html("- a\n  - b")).toContain("<ul><li>a<ul><li>b</li></ul></li></ul>");
  });

  it("keeps comparison signs, ampersands and references", () => {
    expect(html("1 < 2 && 3 > 2 &copy; &amp; &#65;")).toContain("1 &lt; 2 &amp;&amp; 3 > 2 &amp;copy; &amp; A");
    expect(html("`a && b < c`")).toContain("<code>a &amp;&amp; b &lt; c</code>");
  });

  it("draws tables with their alignment", () => {
    const rendered = html("| a | b |\n|---|--:|\n| 1 | 2 |");
    expect(rendered).toContain('<th scope="col" class="align-right">b</th>');
    expect(rendered).toContain("<td>1</td>");
  });

  it("names the language of a block and keeps its text", () => {
    const rendered = html("```rust ignore\nlet a = 1 < 2;\n```");
    expect(rendered).toContain("<span>rust</span>");
    expect(plain(rendered)).toContain("let a = 1 &lt; 2;");
  });

  it("draws a block whose end has not come yet", () => {
    expect(html("text\n\n```\nx = 1")).toContain("<code>x = 1</code>");
  });

  it("starts its headings below the page's own", () => {
    expect(html("# a\n\n###### b")).toContain("<h3>a</h3><h6>b</h6>");
  });
});
