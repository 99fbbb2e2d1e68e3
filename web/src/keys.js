// What keys mean in the fields for messages.

/** Whether a key sends. A touch screen has no Shift for a new line, and a button beside the field. */
export function isSend({ key, shiftKey, isComposing }) {
  return key === 'Enter' && !shiftKey && !isComposing && !matchMedia('(pointer: coarse)').matches;
}
