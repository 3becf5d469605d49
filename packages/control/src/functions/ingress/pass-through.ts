/** Passes a request to a gateway and streams the response back, each with the back-pressure of its reader. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { badGateway, hasBody, keepEndToEnd, unavailable } from '@releap/contract';
import { ResponsePump } from '@releap/contract/response-pump';
import type { Dispatcher } from 'undici';

/** `expect` is answered here, `host` is that of the gateway. */
const isSetAnew = (name: string): boolean => name === 'expect' || name === 'host';

export interface PassThroughOptions {
  dispatcher: Dispatcher;
  /** Of the gateway. */
  origin: string;
  path: string;
  /** Over those of the client. */
  headers: Record<string, string>;
  /** Before the response begins: from now on it is not the caller's. */
  onBegin: () => void;
}

/**
 * Resolves when the response has ended, or the client is gone.
 * @throws ApiError 502 or 503, before the response has begun
 */
export function passThrough(
  request: IncomingMessage,
  response: ServerResponse,
  { dispatcher, origin, path, headers, onBegin }: PassThroughOptions,
): Promise<void> {
  return new Promise((resolve, reject) => {
    let isSent = false;
    let hasBegun = false;
    const pump = new ResponsePump(response, {
      answer(status, answered) {
        hasBegun = true;
        onBegin();
        return [status, keepEndToEnd(answered, isSetAnew)];
      },
      onSent() {
        isSent = true;
      },
      onEnd(error) {
        if (error !== undefined && hasBegun) response.destroy();
        if (error === undefined || response.destroyed) {
          // The client is gone, and nothing can be sent to it any more.
          if (!hasBegun) onBegin();
          return resolve();
        }
        const refusal = isSent
          ? badGateway('the gateway closed the connection before it answered; the function may have run')
          : unavailable('no gateway answers; try again');
        refusal.cause = error;
        reject(refusal);
      },
    });
    dispatcher.dispatch(
      {
        origin,
        path,
        method: request.method as Dispatcher.HttpMethod,
        headers: { ...keepEndToEnd(request.headers, isSetAnew), ...headers },
        body: hasBody(request.headers) ? request : null,
      },
      pump,
    );
  });
}
