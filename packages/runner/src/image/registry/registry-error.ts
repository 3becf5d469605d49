import { errors } from 'undici';
import { ImageError, show } from '../image-error.ts';

/** What a message about a registry names, and what it must not. */
export interface Refused {
  /** The reference in full. */
  name: string;
  host: string;
  /** Of the credential that was sent. */
  secrets: string[] | undefined;
}

/** A readable error for an answer that is no success. @param said its body */
export function answerError(status: number, said: string, { name, host, secrets }: Refused): ImageError {
  const reason = reasonOf(said, secrets);
  const quoted = `HTTP ${status}${reason === '' ? '' : `: ${show(reason, 300)}`}`;
  if (status === 429)
    return new ImageError(
      'rate-limited',
      `registry ${host} refuses more requests for now (rate limit) while fetching ${name}: ${quoted}`,
    );
  if (status === 404) return new ImageError('not-found', `registry ${host} has no image ${name}: ${quoted}`);
  if (status === 401 || status === 403 || /denied|unauthorized/i.test(reason)) {
    const why =
      secrets === undefined
        ? `wants authentication for ${name}, or it does not exist; store a credential for ${host}`
        : `does not accept the project's credential for ${name}`;
    return new ImageError('unauthorized', `registry ${host} ${why}: ${quoted}`);
  }
  if (status >= 500)
    return new ImageError('unreachable', `registry ${host} has a fault while it serves ${name}: ${quoted}`);
  return new ImageError('failed', `registry ${host} does not serve ${name}: ${quoted}`);
}

/** The first of the answer's errors in the form of the distribution specification, else its text. */
function reasonOf(said: string, secrets: readonly string[] = []): string {
  let text = said.trim();
  try {
    const [first] = (JSON.parse(said) as { errors?: { code?: unknown; message?: unknown }[] }).errors ?? [];
    if (first) text = [first.code, first.message].filter((part) => typeof part === 'string').join(': ');
  } catch {
    // HTML of a proxy, say.
  }
  return secrets.reduce((rest, secret) => rest.replaceAll(secret, '***'), text);
}

const TLS = /certificate|self.signed|CERT_|ERR_TLS|ERR_SSL|EPROTO|wrong version number|unable to verify/i;

/** A readable error for a connection that failed, or broke off. */
export function connectionError(error: unknown, { name, host }: Refused, stallMs: number): ImageError {
  if (error instanceof ImageError) return error;
  const { code = '', message, cause, name: kind } = error as NodeJS.ErrnoException;
  if (cause instanceof ImageError) return cause;
  if (kind === 'AbortError' || code === 'UND_ERR_ABORTED')
    return new ImageError('aborted', `fetching ${name} was cancelled`);
  if (error instanceof errors.HeadersTimeoutError || error instanceof errors.BodyTimeoutError) {
    return new ImageError(
      'timeout',
      `registry ${host} sent nothing for ${stallMs / 1000} s while fetching ${name}`,
    );
  }
  if (kind === 'TimeoutError') return new ImageError('timeout', `fetching ${name} took too long`);
  const said = `${code} ${message}`;
  if (TLS.test(said)) {
    return new ImageError(
      'tls',
      `no trusted TLS connection to registry ${host} for ${name} (plain HTTP is used for loopback hosts only): ${show(message === '' ? code : message, 300)}`,
      { cause: error },
    );
  }
  return new ImageError(
    'unreachable',
    `registry ${host} cannot be reached for ${name}: ${show(message === '' ? code : message, 300)}`,
    {
      cause: error,
    },
  );
}
