/** A raw body, which is not JSON. */
import { idleTimeout } from './deadline.ts';

interface ReadOptions {
  url: URL;
  idleMs: number;
  failed: (error: unknown) => Error;
}

export class RawAnswer implements AsyncIterable<Uint8Array<ArrayBuffer>> {
  readonly status: number;
  readonly headers: Headers;
  readonly #chunks: () => AsyncGenerator<Uint8Array<ArrayBuffer>>;

  constructor(response: Response, options: ReadOptions) {
    this.status = response.status;
    this.headers = response.headers;
    this.#chunks = () => read(response, options);
  }

  /** The chunks of the body. It can be read once; ending the iteration ends the request. */
  [Symbol.asyncIterator](): AsyncGenerator<Uint8Array<ArrayBuffer>> {
    return this.#chunks();
  }

  /** The whole body, as UTF-8. */
  async text(): Promise<string> {
    const decoder = new TextDecoder();
    let text = '';
    for await (const chunk of this) text += decoder.decode(chunk, { stream: true });
    return text + decoder.decode();
  }
}

async function* read(
  response: Response,
  { url, idleMs, failed }: ReadOptions,
): AsyncGenerator<Uint8Array<ArrayBuffer>> {
  const reader = response.body?.getReader();
  if (reader === undefined) return;
  try {
    for (;;) {
      const { done, value } = await idleTimeout(reader.read(), idleMs, url);
      if (done) return;
      yield value;
    }
  } catch (error) {
    throw failed(error);
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}
