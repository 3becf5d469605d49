/** Clients of the service's planes: as a signed-in user, as the operator, with a key to check. */
import {
  type Api,
  type Client,
  client,
  type Operations,
  operations,
  ReleapError,
  RETRIED_READS,
} from '@releap/sdk';

export interface Credentials {
  /** Without a final slash. */
  url: string;
  /** An API key or another token. Nothing is sent without one. */
  credential?: string;
  /** Hint for a refused token, appended to the service's message. */
  hint401?: string;
  signal: AbortSignal;
}

export function connect(credentials: Credentials): Api {
  return connectTo(operations, credentials);
}

export function connectTo<const T extends Operations>(
  table: T,
  { url, credential, hint401, signal }: Credentials,
): Client<T> {
  return client(table, {
    baseUrl: url,
    ...(credential === undefined ? {} : { credential }),
    signal,
    retryReads: RETRIED_READS,
    mapError: (error) =>
      hint401 === undefined || error.status !== 401
        ? error
        : new ReleapError(error.kind, `${error.message}: ${hint401}`, { status: 401, cause: error }),
  });
}
