// Hands the user a file.

/** Downloads `value` as JSON. */
export function download(name, value) {
  const blob = new Blob([JSON.stringify(value, null, 2), '\n'], { type: 'application/json' });
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** A file name out of a title. */
export function fileName(title) {
  const words = title.normalize('NFKD').replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-+|-+$/g, '');
  return `${words.slice(0, 60) || 'conversation'}.json`;
}
