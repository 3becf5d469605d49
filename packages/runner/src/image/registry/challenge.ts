/** `WWW-Authenticate` of a registry (RFC 9110, section 11.6.1), as far as registries use it. */
export interface Challenge {
  scheme: 'basic' | 'bearer';
  parameters: ReadonlyMap<string, string>;
}

const CHALLENGE_MAX = 4096;

/** The challenge that can be answered; a bearer token is preferred. */
export function parseChallenge(header: string | string[] | undefined): Challenge | undefined {
  const all = (Array.isArray(header) ? header : [header ?? '']).map((one) => one.slice(0, CHALLENGE_MAX));
  const found = all.flatMap((text): Challenge[] => {
    const [, word = '', rest = ''] = /^\s*([A-Za-z]+)\s*(.*)$/s.exec(text) ?? [];
    const scheme = word.toLowerCase();
    if (scheme !== 'basic' && scheme !== 'bearer') return [];
    const parameters = new Map<string, string>();
    for (const [, name = '', quoted, plain] of rest.matchAll(
      /([a-z]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))/gi,
    )) {
      parameters.set(name.toLowerCase(), quoted?.replaceAll(/\\(.)/g, '$1') ?? plain ?? '');
    }
    return [{ scheme, parameters }];
  });
  return found.find(({ scheme }) => scheme === 'bearer') ?? found[0];
}
