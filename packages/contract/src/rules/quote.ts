/** Untrusted values inside messages. */

const QUOTED_MAX = 80;

/** Shows a value inside a message: JSON-quoted (so control characters cannot fake lines) and cut to a readable length. */
export function quote(value: unknown): string {
  let text: string | undefined;
  if (typeof value === 'number' || typeof value === 'bigint') text = String(value);
  else if (typeof value === 'string')
    // Cut first: quoting a megabyte to show eighty characters of it would be work for an attacker's sake.
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
