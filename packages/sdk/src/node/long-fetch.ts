import type { Agent } from 'undici';

let agent: Agent | undefined;

/**
 * Node's own fetch gives up after five minutes without a byte. What may be silent for longer, as a log that is followed,
 * a command or an upload, has only the limits of its call.
 */
export async function longFetch(url: URL, init: RequestInit): Promise<Response> {
  const undici = await import('undici');
  agent ??= new undici.Agent({ headersTimeout: 0, bodyTimeout: 0 });
  return await undici.fetch(url, { ...init, dispatcher: agent } as Parameters<typeof undici.fetch>[1]);
}
