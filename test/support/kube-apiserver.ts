/** An API server of Kubernetes with etcd, on loopback and without controllers or nodes: it stores what it admits. */
import { spawn, type ChildProcess } from 'node:child_process';
import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readFile, rm, writeFile } from 'node:fs/promises';
import type { IncomingMessage } from 'node:http';
import { request } from 'node:https';
import path from 'node:path';
import { eventually } from '@releap/testing/eventually';
import { freePort } from '@releap/testing/ports';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import type { KubernetesTool } from './kubernetes-tools.ts';

export interface KubeObject {
  apiVersion: string;
  kind: string;
  metadata: { name: string; namespace?: string; resourceVersion?: string; labels?: Record<string, string> };
  spec?: Record<string, unknown>;
  [field: string]: unknown;
}

interface Answer {
  status: number;
  body: Record<string, unknown>;
}

export class KubeApiServer implements AsyncDisposable {
  readonly #folder: string;
  readonly #processes: ChildProcess[] = [];
  readonly #token = randomBytes(16).toString('hex');
  #port = 0;
  #ca = '';

  private constructor(folder: string) {
    this.#folder = folder;
  }

  static async start(tools: Record<KubernetesTool, string>): Promise<KubeApiServer> {
    const server = new KubeApiServer(await temporaryFolder('releap-kube-'));
    try {
      await server.#start(tools);
      return server;
    } catch (error) {
      await server[Symbol.asyncDispose]();
      throw error;
    }
  }

  async #start(tools: Record<KubernetesTool, string>): Promise<void> {
    const at = (name: string): string => path.join(this.#folder, name);
    const [etcdPort, peerPort] = [await freePort(), await freePort()];
    this.#port = await freePort();
    const [etcd, peers] = [`http://127.0.0.1:${etcdPort}`, `http://127.0.0.1:${peerPort}`];
    this.#run(tools.etcd, [
      `--data-dir=${at('etcd')}`,
      `--listen-client-urls=${etcd}`,
      `--advertise-client-urls=${etcd}`,
      `--listen-peer-urls=${peers}`,
      `--initial-advertise-peer-urls=${peers}`,
      `--initial-cluster=default=${peers}`,
      '--unsafe-no-fsync=true',
    ]);
    const keys = generateKeyPairSync('rsa', { modulusLength: 2048 });
    await writeFile(at('accounts.key'), keys.privateKey.export({ type: 'pkcs8', format: 'pem' }), {
      mode: 0o600,
    });
    await writeFile(at('accounts.pub'), keys.publicKey.export({ type: 'spki', format: 'pem' }));
    await writeFile(at('tokens.csv'), `${this.#token},test,test,system:masters\n`, { mode: 0o600 });
    this.#run(tools['kube-apiserver'], [
      `--etcd-servers=${etcd}`,
      '--bind-address=127.0.0.1',
      '--advertise-address=127.0.0.1',
      `--secure-port=${this.#port}`,
      `--cert-dir=${at('certificates')}`,
      '--service-account-issuer=https://kubernetes.default.svc',
      `--service-account-key-file=${at('accounts.pub')}`,
      `--service-account-signing-key-file=${at('accounts.key')}`,
      '--service-cluster-ip-range=10.96.0.0/16',
      `--token-auth-file=${at('tokens.csv')}`,
      '--authorization-mode=RBAC',
      // As clusters have it, where pod security decides.
      '--allow-privileged',
      // Namespaces have their account only where a controller runs.
      '--disable-admission-plugins=ServiceAccount',
      '--endpoint-reconciler-type=none',
    ]);
    await eventually('the API server is ready', async () => {
      const ended = this.#processes.find(({ exitCode }) => exitCode !== null);
      if (ended !== undefined)
        throw new Error(`${ended.spawnfile} has ended: ${await readFile(at('log'), 'utf8')}`);
      this.#ca = await readFile(at('certificates/apiserver.crt'), 'utf8');
      return (await this.call('GET', '/readyz')).status === 200;
    });
  }

  #run(program: string, args: string[]): void {
    const log = path.join(this.#folder, 'log');
    const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'pipe'], cwd: this.#folder });
    let text = '';
    for (const stream of [child.stdout, child.stderr])
      stream.on('data', (chunk: Buffer) => {
        text = (text + chunk.toString()).slice(-20_000);
      });
    child.once('exit', () => void writeFile(log, text).catch(() => undefined));
    this.#processes.push(child);
  }

  async call(method: string, url: string, body?: string, contentType = 'application/json'): Promise<Answer> {
    const sent = request({
      host: '127.0.0.1',
      port: this.#port,
      path: url,
      method,
      // A name that is in the certificate which it makes.
      ca: this.#ca,
      servername: 'kubernetes',
      headers: {
        authorization: `Bearer ${this.#token}`,
        ...(body === undefined ? {} : { 'content-type': contentType }),
      },
    });
    sent.end(body);
    const [response] = (await once(sent, 'response')) as [IncomingMessage];
    const chunks: Buffer[] = [];
    for await (const chunk of response) chunks.push(chunk as Buffer);
    const text = Buffer.concat(chunks).toString();
    const isJson = response.headers['content-type']?.startsWith('application/json') === true;
    return {
      status: response.statusCode ?? 0,
      body: isJson ? (JSON.parse(text) as Record<string, unknown>) : { text },
    };
  }

  /**
   * Server-side apply: unknown fields are refused.
   * @param manifest YAML or JSON of one object
   * @throws with the answer of the server
   */
  async apply(manifest: string, options: { namespace?: string; dryRun?: boolean } = {}): Promise<KubeObject> {
    const { kind, apiVersion, name, namespace } = headOf(manifest);
    const url = await this.#urlOf(apiVersion, kind, namespace ?? options.namespace ?? 'default');
    const query = `fieldManager=test&fieldValidation=Strict${options.dryRun === true ? '&dryRun=All' : ''}`;
    const answer = await this.call(
      'PATCH',
      `${url}/${name}?${query}`,
      manifest,
      'application/apply-patch+yaml',
    );
    if (answer.status >= 300)
      throw new Error(
        `${kind} ${name}: ${answer.status} ${JSON.stringify(answer.body['message'] ?? answer.body)}`,
      );
    return answer.body as unknown as KubeObject;
  }

  async #urlOf(apiVersion: string, kind: string, namespace: string): Promise<string> {
    const group = apiVersion.includes('/') ? `/apis/${apiVersion}` : `/api/${apiVersion}`;
    const found = await eventually(`the API server knows ${kind}`, async () => {
      const { resources = [] } = (await this.call('GET', group)).body as {
        resources?: { kind: string; name: string; namespaced: boolean }[];
      };
      return resources.find((one) => one.kind === kind && !one.name.includes('/'));
    });
    return found.namespaced ? `${group}/namespaces/${namespace}/${found.name}` : `${group}/${found.name}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const child of this.#processes.toReversed()) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      const ended = once(child, 'exit');
      child.kill('SIGKILL');
      await ended;
    }
    await rm(this.#folder, { recursive: true, force: true });
  }
}

/** Of a manifest as Helm or a person writes it, or of JSON in one line. */
function headOf(manifest: string) {
  if (manifest.startsWith('{')) {
    const { apiVersion, kind, metadata } = JSON.parse(manifest) as KubeObject;
    return { apiVersion, kind, ...metadata };
  }
  const field = (pattern: RegExp): string | undefined => pattern.exec(manifest)?.[1]?.replaceAll('"', '');
  const apiVersion = field(/^apiVersion: (\S+)$/m);
  const kind = field(/^kind: (\S+)$/m);
  const name = field(/^metadata:\n(?: {2}.*\n)*? {2}name: (\S+)$/m);
  if (apiVersion === undefined || kind === undefined || name === undefined)
    throw new Error(`no apiVersion, kind or name in ${manifest.slice(0, 500)}`);
  return { apiVersion, kind, name, namespace: field(/^metadata:\n(?: {2}.*\n)*? {2}namespace: (\S+)$/m) };
}

/** A resource that another project defines, of which the API server here knows the name alone. */
export function stubDefinition(
  group: string,
  version: string,
  kind: string,
  plural: string,
  scope = 'Namespaced',
): string {
  const schema = { type: 'object', 'x-kubernetes-preserve-unknown-fields': true };
  return JSON.stringify({
    apiVersion: 'apiextensions.k8s.io/v1',
    kind: 'CustomResourceDefinition',
    metadata: {
      name: `${plural}.${group}`,
      // Asked for in groups of Kubernetes itself.
      annotations: { 'api-approved.kubernetes.io': 'unapproved, a stub of a test' },
    },
    spec: {
      group,
      scope,
      names: { kind, plural, singular: kind.toLowerCase() },
      versions: [{ name: version, served: true, storage: true, schema: { openAPIV3Schema: schema } }],
    },
  });
}
