/**
 * How runners and gateways connect to the internal listener of the control plane: over plain HTTP on their own machine, and over TLS to
 * another, whose certificate is of the deployment's authority. They know that by its fingerprint, until they have the certificate itself
 * in a file; it follows when the authority is replaced.
 */
import type { X509Certificate } from 'node:crypto';
import type { Socket } from 'node:net';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import { Agent, fetch as fetchWith } from 'undici';
import { readIfThere, writePrivateFile } from '../private-file.ts';
import { connectorOf, type Peer, placeOf, plainPeer } from './data-hosts.ts';
import { CONTROL_NAME } from './names.ts';
import { opened } from './opened.ts';

export interface ControlTrust {
  /** PEM; made when the control plane is first reached. Without it, the root is known in this process alone. */
  file?: string | undefined;
  /** SHA-256 of the root, in hexadecimal. Without it and without the file, authorities of this machine are trusted. */
  fingerprint?: string | undefined;
}

const CONNECT_MS = 10_000;
/** Code of the error when the control plane is of another authority than its fingerprint says. */
export const OTHER_AUTHORITY = 'ERR_OTHER_AUTHORITY';

export class ControlAccess {
  /** `http://host:port`, `https://host:port` or `unix:/absolute/path.sock`. */
  readonly url: string;
  readonly peer: Peer;
  readonly fetch: typeof globalThis.fetch;
  readonly #trust: ControlTrust | undefined;
  #roots: Promise<string | undefined> | undefined;

  constructor(url: string, trust?: ControlTrust) {
    this.url = url;
    this.#trust = trust;
    if (!url.startsWith('https:')) {
      this.peer = plainPeer(url, CONNECT_MS);
      this.fetch = (input, init) => globalThis.fetch(input, init);
      return;
    }
    this.peer = { key: url, origin: new URL(url).origin, isLocal: false, dial: () => this.#dial() };
    const dispatcher = new Agent({ connect: connectorOf(this.peer) });
    this.fetch = ((input: string | URL, init?: object) =>
      fetchWith(input, { ...init, dispatcher })) as unknown as typeof globalThis.fetch;
  }

  /** Whether certificates of the deployment's authority are expected. */
  async isPinned(): Promise<boolean> {
    return this.url.startsWith('https:') && (await this.roots()) !== undefined;
  }

  /** The roots that came with a certificate of this process. */
  async follow(roots: string): Promise<void> {
    const file = this.#trust?.file;
    if (file === undefined || !(await this.isPinned()) || (await this.#roots) === roots) return;
    await writePrivateFile(file, roots);
    this.#roots = Promise.resolve(roots);
  }

  /** What its certificate is verified with; undefined: authorities of this machine. @throws when it is of another authority */
  roots(): Promise<string | undefined> {
    return (this.#roots ??= this.#read().catch((error: unknown) => {
      this.#roots = undefined;
      throw error;
    }));
  }

  async #read(): Promise<string | undefined> {
    const { file, fingerprint } = this.#trust ?? {};
    const stored = file === undefined ? undefined : await readIfThere(file);
    if (stored !== undefined || fingerprint === undefined) return stored;
    const root = await this.#learn(fingerprint);
    if (file !== undefined) await writePrivateFile(file, root);
    return root;
  }

  async #dial(): Promise<Socket> {
    const place = placeOf(this.url);
    const roots = await this.roots();
    const socket = connectTls({
      ...place,
      ...(roots === undefined ? {} : { ca: roots, servername: CONTROL_NAME, minVersion: 'TLSv1.3' }),
      ALPNProtocols: ['http/1.1'],
    });
    socket.setNoDelay(true);
    return await opened(socket, 'secureConnect', CONNECT_MS);
  }

  /** Nothing is sent on this connection: it only shows the root, which the next one is verified with. */
  async #learn(fingerprint: string): Promise<string> {
    const socket = connectTls({ ...placeOf(this.url), servername: CONTROL_NAME, rejectUnauthorized: false });
    try {
      await opened(socket, 'secureConnect', CONNECT_MS);
      const root = chainOf(socket).find(
        (certificate) => certificate.fingerprint256.replaceAll(':', '').toLowerCase() === fingerprint,
      );
      if (root !== undefined) return root.toString();
    } finally {
      socket.destroy();
    }
    throw Object.assign(
      new Error(
        `the control plane at ${this.url} is not of the authority with the fingerprint ${fingerprint} (RELEAP_CONTROL_FINGERPRINT)`,
      ),
      { code: OTHER_AUTHORITY },
    );
  }
}

function chainOf(socket: TLSSocket): X509Certificate[] {
  const chain: X509Certificate[] = [];
  for (
    let one = socket.getPeerX509Certificate();
    one !== undefined && chain.length < 8;
    one = one.issuerCertificate
  )
    chain.push(one);
  return chain;
}
