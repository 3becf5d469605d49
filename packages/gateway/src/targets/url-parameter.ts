/**
 * Takes the values of a parameter out of a URL; the rest stays byte for byte.
 * @returns the first value, null without one
 */
export function takeParameter(url: string, name: string): { url: string; token: string | null } {
  const start = url.indexOf('?');
  if (start === -1) return { url, token: null };
  const parts = url.slice(start + 1).split('&');
  const isToken = (part: string): boolean => decode(part.split('=', 1)[0] ?? '') === name;
  const found = parts.find(isToken);
  if (found === undefined) return { url, token: null };
  const rest = parts.filter((part) => !isToken(part)).join('&');
  const path = url.slice(0, start);
  return {
    url: rest === '' ? path : `${path}?${rest}`,
    token: decode(found.slice(found.indexOf('=') + 1)),
  };
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
