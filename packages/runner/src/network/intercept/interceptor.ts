import { lstat, mkdir, rm } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { tokenDigest, type RunnerSecrets, type SandboxSecret } from '@releap/contract';
import {
  INTERCEPT_PROTOCOL,
  INTERCEPT_REPLY_MAX_BYTES,
  InterceptorToRunner,
  type InterceptSecret,
  type RunnerToInterceptor,
} from '@releap/contract/netd';
import type { Logger } from 'pino';
import type { HelperConnection, HelperProtocol } from '../netd/helper-connection.ts';
import type { CgroupTree } from '../../cgroup/cgroup-tree.ts';
import { HelperProcess, SHARED_FOLDER } from '../netd/helper-process.ts';
import { HelperSupervisor } from '../netd/helper-supervisor.ts';
import { type Polled, RevisionPoll } from '../netd/revision-poll.ts';
import type { SecretsSource } from './secrets-client.ts';

const INTERCEPTOR: HelperProtocol<RunnerToInterceptor, typeof InterceptorToRunner> = {
  name: 'the interceptor',
  version: INTERCEPT_PROTOCOL,
  received: InterceptorToRunner,
  receivedMaxBytes: INTERCEPT_REPLY_MAX_BYTES,
  waitingMaxBytes: 128 * 1024 * 1024,
};
type Connection = HelperConnection<RunnerToInterceptor, typeof InterceptorToRunner>;

export interface InterceptorOptions {
  /** A folder of its own. */
  dir: string;
  cgroups: CgroupTree;
  /** Where netd hands connections over. Its folder is made; every user may reach the socket, only netd may connect. */
  guestSocket: string;
  /** The user that it becomes, and netd's. */
  uid: number;
  netdUid: number;
  source: SecretsSource;
  /** Certificates of authorities, PEM, that servers may be verified with besides those of the host. */
  extraCa?: string | undefined;
  /** The secrets of a sandbox may be sent to these domains from now on. */
  onDomains: (vmId: string, domains: readonly string[]) => void;
  log: Logger;
}

interface Sandbox extends Polled {
  /** Variables with placeholders. */
  env: Record<string, string>;
}

/**
 * The runner's side of the interceptor: runs one as soon as there is a sandbox with secrets that may be sent somewhere, and
 * gives it the secrets, which it keeps nowhere itself. After a restart of either they are asked for again.
 */
export class Interceptor {
  readonly #options: InterceptorOptions;
  readonly #helper: HelperSupervisor<RunnerToInterceptor, typeof InterceptorToRunner>;
  readonly #sandboxes = new Map<string, Sandbox>();
  readonly #poll: RevisionPoll<Sandbox, RunnerSecrets['sandboxes'][number], Connection>;

  constructor(options: InterceptorOptions) {
    this.#options = options;
    const { dir, guestSocket, uid, netdUid, source, onDomains, log } = options;
    this.#poll = new RevisionPoll({
      sandboxes: this.#sandboxes,
      changed: (asked) => source.changed(asked),
      put: (connection, { env }, { id, secrets }) => {
        const replaced = secrets.map((one) => withPlaceholder(one, env));
        connection.tell({ type: 'put', vm_id: id, secrets: replaced });
        onDomains(id, [...new Set(secrets.flatMap((one) => one.allowed_domains))]);
      },
      subject: 'secrets',
      log,
    });
    this.#helper = new HelperSupervisor({
      process: new HelperProcess(
        dir,
        {
          name: 'intercept',
          file: 'src/intercept/main.ts',
          args: [join(SHARED_FOLDER, basename(guestSocket)), String(uid), String(netdUid)],
          shared: { folder: dirname(guestSocket), access: 'write' },
        },
        options.cgroups,
      ),
      protocol: INTERCEPTOR,
      prepare: async () => {
        const folder = dirname(guestSocket);
        await mkdir(folder, { recursive: true, mode: 0o711 });
        if (!(await lstat(folder)).isDirectory()) throw new Error(`${folder} is not a folder`);
      },
      serve: (connection) => this.#serve(connection),
      onRequest: ({ request }, connection) => void this.#sign(request, connection),
      log,
    });
  }

  /** The process, for tests and people; undefined while there is none. */
  async pid(): Promise<number | undefined> {
    return await this.#helper.pid();
  }

  /** How often it has ended by itself, or hung and was ended. */
  get ends(): number {
    return this.#helper.ends;
  }

  /** From now on placeholders of this sandbox are replaced. @param env with its placeholders */
  put(vmId: string, env: Record<string, string>): void {
    this.#sandboxes.set(vmId, { env });
    this.#helper.start();
    this.#poll.wake();
  }

  /** Placeholders of this sandbox are worth nothing any more. */
  remove(vmId: string): void {
    if (!this.#sandboxes.delete(vmId)) return;
    this.#helper.connection?.tell({ type: 'remove', vm_id: vmId });
  }

  /** The runner ends, the interceptor continues. */
  async detach(): Promise<void> {
    await this.#helper.detach();
  }

  /** Ends the interceptor. */
  async stop(): Promise<void> {
    await this.#helper.stop();
    await rm(dirname(this.#options.guestSocket), { recursive: true, force: true });
  }

  /** Gives a connected interceptor what it needs, until it is lost. */
  async #serve(connection: Connection): Promise<void> {
    const { extraCa } = this.#options;
    connection.send({
      type: 'hello',
      protocol: INTERCEPT_PROTOCOL,
      ...(extraCa === undefined ? {} : { extra_ca: extraCa }),
    });
    await this.#poll.serve(connection);
  }

  async #sign(request: string, connection: Connection): Promise<void> {
    try {
      connection.send({
        type: 'certificate',
        request,
        certificate: await this.#options.source.certificate(request),
      });
    } catch (error) {
      // It asks again.
      this.#options.log.warn({ why: String(error) }, 'a certificate for the interceptor cannot be asked for');
    }
  }
}

/** The placeholder that the environment has is the one that responses get. */
function withPlaceholder(secret: SandboxSecret, env: Record<string, string>): InterceptSecret {
  const { name, value, allowed_domains, allow_http = false, placeholders } = secret;
  const own = env[name];
  const isOwn = own !== undefined && placeholders.includes(tokenDigest(own).toString('hex'));
  return { value, allowed_domains, allow_http, placeholders, ...(isOwn ? { placeholder: own } : {}) };
}
