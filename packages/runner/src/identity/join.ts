/** Makes a machine a host of a deployment before its runner starts, so that what is wrong is said to the operator who is there. */
import { existsSync } from 'node:fs';
import { mkdir, readFile, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { writePrivateFile } from '@releap/certificates/private-file';
import { ControlAccess, OTHER_AUTHORITY } from '@releap/certificates/hosts';
import type { DataListen } from '../data/tls-listener.ts';
import { Deployment } from '../link/deployment.ts';
import { runnerId } from '../runner-id.ts';
import {
  assertClock,
  type Answer,
  CREDENTIAL,
  newCredential,
  requestDataKey,
  requestJoin,
} from './control-requests.ts';
import { whyUnreached } from './reach.ts';

export interface JoinOptions {
  /** `RELEAP_HOME`, absolute. */
  home: string;
  /** Internal listener of the control plane: `https://host:port`. */
  controlUrl: string;
  /** SHA-256 of the root of its certificate, in hexadecimal. */
  fingerprint: string;
  /** Of a join token. */
  secret: string;
  /** Where gateways and control servers are to connect to; absent: nowhere. */
  data?: DataListen | undefined;
}

export interface Joined {
  runnerId: string;
  /** False: the control plane had its credential already, and the token was not used. */
  isNew: boolean;
  /** Why the control plane cannot connect there. */
  unreached?: string | undefined;
}

/** A refusal leaves the home as it was. Without an answer, another call with the same token finishes what this one began. @throws with the reason */
export async function joinDeployment({
  home,
  controlUrl,
  fingerprint,
  secret,
  data,
}: JoinOptions): Promise<Joined> {
  const folder = join(home, 'runner');
  const files = {
    id: join(folder, 'id'),
    credential: join(folder, 'credential'),
    // As of a renewal: it may have been registered when nothing is known of the answer.
    next: join(folder, 'credential.next'),
    roots: join(folder, 'control-ca.pem'),
  };
  const access = new ControlAccess(controlUrl, { fingerprint });
  const place = { controlUrl, fetch: access.fetch };
  const hadId = existsSync(files.id);
  const present = await credentialIn(files.credential);
  const known = await requestDataKey(place, present ?? newCredential()).catch((error: unknown) => {
    throw unreachable(controlUrl, error);
  });
  const deployment = Deployment.open(join(folder, 'deployment'));
  if (known.status !== 200) {
    // What this machine shows is not registered there.
    if (known.status !== 401) throw refused(known);
    assertClock(known);
  }
  const isNew = known.status !== 200;
  const made = await mkdir(folder, { recursive: true, mode: 0o700 });
  const id = await runnerId(files.id);
  if (isNew) {
    const begun = await credentialIn(files.next);
    const credential = begun ?? newCredential();
    if (begun === undefined) await writePrivateFile(files.next, `${credential}\n`);
    const request = { runnerId: id, credential, deploymentId: deployment.id };
    const answer = await requestJoin(place, secret, request).catch((error: unknown) => {
      throw unreachable(controlUrl, error);
    });
    if (answer.status !== 200) {
      if (begun === undefined) await rm(files.next);
      if (!hadId) await rm(files.id);
      if (made !== undefined) await rm(made, { recursive: true });
      throw refused(answer);
    }
    await rename(files.next, files.credential);
    const { deployment_id: joined } = answer.body as { deployment_id?: unknown };
    if (typeof joined === 'string') deployment.join(joined);
  }
  const root = (await access.roots()) ?? '';
  // During the replacement of the root the file has two.
  if (!(await textOf(files.roots)).includes(root.trim())) await writePrivateFile(files.roots, root);
  if (data === undefined) return { runnerId: id, isNew };
  return { runnerId: id, isNew, unreached: await whyUnreached(place, await textOf(files.credential), data) };
}

async function credentialIn(file: string): Promise<string | undefined> {
  const text = await textOf(file);
  return CREDENTIAL.test(text) ? text : undefined;
}

/** Empty when there is no such file. */
const textOf = (file: string): Promise<string> =>
  readFile(file, 'utf8').then(
    (text) => text.trim(),
    (error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return '';
      throw error;
    },
  );

function refused({ status, body }: Answer): Error {
  const { error } = (body ?? {}) as { error?: unknown };
  if (typeof error === 'string')
    return new Error(`the control plane refuses this machine: ${error.slice(0, 300)}`);
  return new Error(
    `the control plane answered ${status}: is the URL of the token that of its internal listener?`,
  );
}

function unreachable(url: string, error: unknown): Error {
  const { cause = error } = error as Error;
  const { code, message } = cause as NodeJS.ErrnoException;
  if (code === OTHER_AUTHORITY)
    return new Error(`the control plane at ${url} is not of the deployment that the join token is for`);
  if (code === 'CERT_NOT_YET_VALID' || code === 'CERT_HAS_EXPIRED')
    return new Error(
      `by the clock of this machine, the certificate of the control plane ${code === 'CERT_NOT_YET_VALID' ? 'is not valid yet' : 'has expired'}: ` +
        'synchronise the clocks of both before this machine joins',
    );
  return new Error(`the control plane at ${url} cannot be reached from this machine: ${message}`);
}
