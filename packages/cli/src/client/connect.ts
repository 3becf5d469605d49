/** Clients of the service's planes: as a project, as a signed-in user, as the operator, and of one sandbox's toolbox. */
import { client, type Client, type Operations, operations, type RetryPolicy } from '@releap/sdk';
import type { Agent } from 'undici';
import { toCliError } from './failure.ts';

export type Api = Client<typeof operations>;

export interface Credentials {
  /** Without a final slash. */
  url: string;
  /** An API key or another token. Nothing is sent without one. */
  credential?: string;
  /** Hint for a refused token, appended to the service's message. */
  hint401?: string;
  signal: AbortSignal;
}

/** A rate that is still exceeded after so many tries is not one to wait for. */
const READS: RetryPolicy = { attempts: 5, statuses: [429] };

export function connect(credentials: Credentials): Api {
  return connectTo(operations, credentials);
}

/** Throws `CliError`s. Only a read that is refused because there were too many (429) is repeated, for a while. */
export function connectTo<const T extends Operations>(
  table: T,
  { url, credential, hint401, signal }: Credentials,
  fetch?: typeof longFetch,
): Client<T> {
  return client(table, {
    baseUrl: url,
    ...(credential === undefined ? {} : { credential }),
    ...(fetch === undefined ? {} : { fetch }),
    signal,
    retryReads: READS,
    mapError: (error) => toCliError(error, url, hint401),
  });
}

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

/** For a create or fork that finds no capacity (429), or a part of the service temporarily unavailable (503). */
export function retryOnOverload(onRefusal: (reason: string) => void): RetryPolicy {
  return { attempts: 20, onRefusal: ({ message }) => onRefusal(message) };
}
