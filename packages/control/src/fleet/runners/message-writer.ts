import {
  LINK_ITEMS_BYTES,
  LINK_ITEMS_MAX,
  type AnyAssignment,
  type Assignment,
} from '@releap/contract/runner';

/**
 * Packs assignments into messages of bounded size and sends each before the next is made. Each assignment is serialized
 * once.
 */
export class AssignmentWriter {
  readonly #type: 'sync' | 'desired';
  readonly #send: (text: string) => Promise<void>;
  #items: string[] = [];
  #bytes = 0;

  /** @param send resolves when the socket has taken the message, or is closed */
  constructor(type: 'sync' | 'desired', send: (text: string) => Promise<void>) {
    this.#type = type;
    this.#send = send;
  }

  async add(assignment: Assignment | AnyAssignment): Promise<void> {
    const text = JSON.stringify(assignment);
    const bytes = Buffer.byteLength(text);
    if (
      this.#items.length > 0 &&
      (this.#bytes + bytes > LINK_ITEMS_BYTES || this.#items.length >= LINK_ITEMS_MAX)
    )
      await this.#flush(true);
    this.#items.push(text);
    this.#bytes += bytes;
  }

  /** Sends what is left. The last `sync` says that it is complete, even when it is empty. */
  async end(): Promise<void> {
    if (this.#type === 'sync' || this.#items.length > 0) await this.#flush(false);
  }

  async #flush(more: boolean): Promise<void> {
    const items = this.#items;
    this.#items = [];
    this.#bytes = 0;
    const rest = this.#type === 'sync' ? `,"more":${more}` : '';
    await this.#send(`{"type":"${this.#type}","items":[${items.join(',')}]${rest}}`);
  }
}
