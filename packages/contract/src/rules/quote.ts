/** Untrusted values in messages. */

const QUOTED_MAX = 80;

/** Quotes a value for a message: as JSON, so that control characters cannot forge lines, and truncated. */
export function quote(value: unknown): string {
  let text: string | undefined;
  if (typeof value === 'number' || typeof value === 'bigint') text = String(value);
  else if (typeof value === 'string')
    // Truncate first: quoting a megabyte would waste CPU time for an attacker.
    text = JSON.stringify(value.length > QUOTED_MAX ? value.slice(0, QUOTED_MAX) : value);
  else if (Array.isArray(value)) text = `an array of ${value.length} item${value.length === 1 ? '' : 's'}`;
  else text = value === undefined ? 'nothing' : safeJson(value);
  return text.length > QUOTED_MAX + 2 || (typeof value === 'string' && value.length > QUOTED_MAX)
    ? `${text.slice(0, QUOTED_MAX)}…${typeof value === 'string' ? '"' : ''}`
    : text;
}

function safeJson(value: unknown): string {
  if (value !== null && typeof value === 'object') {
    const keys = Object.keys(value);
    const shown = keys.slice(0, 8).map((key) => quote(key));
    return keys.length === 0
      ? 'an empty object'
      : `an object with ${shown.join(', ')}${keys.length > 8 ? ', …' : ''}`;
  }
  return JSON.stringify(value) ?? typeof value;
}
