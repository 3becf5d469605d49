/**
 * How acme-client sends its requests. Its own way turns a failed connection into a TypeError, after retries that nothing can end;
 * attempts are repeated by `MaintainedCertificate` instead.
 */
import type { axios } from 'acme-client';
import { Agent, request } from 'undici';

const CONNECT_MS = 15_000;
const ANSWER_MS = 30_000;
const ANSWER_MAX_BYTES = 1024 * 1024;

export class UnreachableError extends Error {}

type Adapter = Extract<
  NonNullable<(typeof axios)['defaults']['adapter']>,
  (...args: never[]) => Promise<unknown>
>;

export interface AcmeHttp extends AsyncDisposable {
  adapter: Adapter;
}

/** @param ca certificates (PEM) that servers are verified with; undefined for those of the host */
export function acmeHttp(ca: readonly string[] | undefined, signal: AbortSignal): AcmeHttp {
  const dispatcher = new Agent({
    connect: { timeout: CONNECT_MS, ...(ca === undefined ? {} : { ca: [...ca] }) },
    headersTimeout: ANSWER_MS,
    bodyTimeout: ANSWER_MS,
    maxResponseSize: ANSWER_MAX_BYTES,
  });
  return {
    async adapter(config) {
      const { url = '', method = 'get', headers, data } = config;
      try {
        const answer = await request(url, {
          method: method.toUpperCase() as 'GET',
          headers: headers.toJSON() as Record<string, string>,
          body: (data as string | undefined) ?? null,
          dispatcher,
          signal,
        });
        return {
          data: await answer.body.text(),
          status: answer.statusCode,
          statusText: '',
          headers: answer.headers as Record<string, string>,
          config,
        };
      } catch (error) {
        signal.throwIfAborted();
        throw new UnreachableError(`${new URL(url).origin} cannot be reached: ${reasonOf(error)}`, {
          cause: error,
        });
      }
    },
    [Symbol.asyncDispose]: () => dispatcher.destroy(),
  };
}

/** The error of several addresses has only a code. */
function reasonOf(error: unknown): string {
  const { message, code } = error as NodeJS.ErrnoException;
  return message || code || String(error);
}
