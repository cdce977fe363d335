// Split text into words as spaCy's tokenizer does (`Tokenizer.explain`), by rules of spaCy.

const MAX_PARTS = 8; // of an exception

/** Return a function that splits a text; `rules` are those of `read_tokenizer_rules`. */
export function makeTokenizer(rules) {
  const exceptions = new Map(Object.entries(rules.exceptions));
  const prefix = new RegExp(rules.prefix, "u");
  const suffix = new RegExp(rules.suffix, "u");
  const infix = new RegExp(rules.infix, "gu");
  const url = new RegExp(rules.url, "u");

  function splitChunk(text) {
    const before = [], after = [];
    let length = -1;
    while (text && text.length !== length && !exceptions.has(text)) {
      length = text.length;
      const first = prefix.exec(text)?.[0] ?? "";
      if (first) before.push(first);
      text = text.slice(first.length);
      if (exceptions.has(text)) break;
      const last = suffix.exec(text)?.[0] ?? "";
      if (last) after.unshift(last);
      text = text.slice(0, text.length - last.length);
    }
    const middle = exceptions.get(text) ?? (url.test(text) ? [text] : splitInfixes(text));
    return applyExceptions([...before, ...middle, ...after]);
  }

  /** Apply the exceptions that only splitting reveals, such as ":)" in "good:)". */
  function applyExceptions(parts) {
    for (let start = 0; start < parts.length - 1; start++) {
      for (let end = Math.min(parts.length, start + MAX_PARTS); end > start + 1; end--) {
        const words = exceptions.get(parts.slice(start, end).join(""));
        if (!words) continue;
        parts.splice(start, end - start, ...words);
        start += words.length - 1;
        break;
      }
    }
    return parts;
  }

  function splitInfixes(text) {
    const parts = [];
    let end = 0;
    for (const match of text.matchAll(infix)) {
      if (match.index === 0) continue;
      parts.push(text.slice(end, match.index), match[0]);
      end = match.index + match[0].length;
    }
    return [...parts, text.slice(end)].filter(Boolean);
  }

  return (text) => text.split(/[\t-\r\x1c-\x20\x85\p{Z}]+/u).filter(Boolean).flatMap(splitChunk);
}
