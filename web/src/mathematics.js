// Leaves mathematics in Markdown as it was written: `\(…\)`, `\[…\]`, `$…$` and `$$…$$`. Without this, `\(` would be
// an escaped bracket, `_` a mark of emphasis and `|` the end of a cell. Its punctuation is replaced by characters
// that mean nothing in Markdown before the text is read, and put back where the text is shown.

/** The punctuation that is replaced; code spans and fences keep their backticks. */
const PUNCTUATION = '!"#$%&\'()*+,-./:;<=>?@[\\]^_{|}~';

/** The first of the 32 noncharacters of Unicode that replace it. They are not for text, so no text needs them. */
const FIRST = 0xfdd0;
const REPLACED = /[\ufdd0-\ufdef]/g;

/**
 * Mathematics, or a backslash with what it escapes. A dollar is money or a variable of a shell if a space follows
 * it, or a letter or digit stands before it or after the closing one. After a letter or in an address, `\(` is a
 * bracket. The maximum length bounds the time for a text that opens often and never closes.
 */
const FOUND = new RegExp(
  [
    String.raw`(?<![\w/.%-])\\\((?:(?!\n\s*\n)[^\x60]){1,2000}?\\\)`,
    String.raw`\\\[(?:(?!\n\s*\n)[^\x60]){1,2000}?\\\]`,
    String.raw`\\[^]`,
    String.raw`\$\$(?:(?!\n\s*\n)[^\x60]){1,2000}?\$\$`,
    String.raw`(?<![\p{L}\p{N}$])\$(?![\s$])(?:\\.|[^\\$\n\x60]){1,1000}(?<!\s)\$(?![\p{L}\p{N}$])`,
  ].join('|'),
  'gu',
);

/** Replaces the punctuation of the mathematics in `text`. The length stays. */
export function masked(text) {
  return text.replace(REPLACED, '\ufffd').replace(FOUND, (found) => {
    if (found.length === 2 || found.includes('~~~')) return found; // an escaped character, or a fence
    return found.replace(/[!-/:-@[-_{-~]/g, (mark) => String.fromCharCode(FIRST + PUNCTUATION.indexOf(mark)));
  });
}

/** Puts back what `masked` replaced. */
export function restored(text) {
  return text.replace(REPLACED, (mark) => PUNCTUATION[mark.charCodeAt(0) - FIRST] ?? '\ufffd');
}
