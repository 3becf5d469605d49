import type { IncomingMessage } from 'node:http';
import { Readable } from 'node:stream';
import { badRequest } from '@releap/contract';
import { ClientDisconnected } from '../http/errors.ts';

export interface RequestBodyOptions {
  /** In bytes. */
  max: number;
  /** Longest time without a byte while the handler reads, in milliseconds. */
  idleMs: number;
  /** Before the first byte is read. */
  onStart: () => void;
}

/**
 * The client's body, which is not touched before something reads it: until then the request can be sent to another instance. It
 * fails when it is too long or nothing of it arrives.
 */
export function requestBody(
  request: IncomingMessage,
  { max, idleMs, onStart }: RequestBodyOptions,
): Readable {
  let isStarted = false;
  let size = 0;
  let timer: NodeJS.Timeout | undefined;
  const onData = (chunk: Buffer): void => {
    size += chunk.length;
    if (size > max) return void body.destroy(bodyTooLarge(max));
    timer?.refresh();
    if (body.push(chunk)) return;
    request.pause();
    clearTimeout(timer);
    timer = undefined;
  };
  const onEnd = (): void => {
    clearTimeout(timer);
    body.push(null);
  };
  const onGone = (): void => void body.destroy(new ClientDisconnected());
  const body = new Readable({
    read() {
      timer ??= setTimeout(
        () => body.destroy(badRequest(`nothing of the request body arrived for ${idleMs} ms`)),
        idleMs,
      );
      if (isStarted) {
        request.resume();
        return;
      }
      isStarted = true;
      onStart();
      request.on('data', onData).once('end', onEnd).once('aborted', onGone).once('error', onGone);
    },
    destroy(error, done) {
      clearTimeout(timer);
      request.off('data', onData).off('end', onEnd).off('aborted', onGone);
      done(error);
    },
  });
  body.on('error', () => undefined);
  return body;
}

export const bodyTooLarge = (max: number): Error =>
  badRequest(
    `the body of a call is larger than ${max} bytes; pass a reference to larger data instead`,
    'request_too_large',
  );
