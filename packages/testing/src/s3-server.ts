/** A real S3 server for tests: OpenStack Swift, which checks signatures. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { createInterface } from 'node:readline';
import type { StoreOptions } from '@releap/control';
import { CreateBucketCommand, S3Client } from '@aws-sdk/client-s3';

export type S3StoreOptions = Extract<StoreOptions, { type: 's3' }>;

export interface TestS3Server extends AsyncDisposable {
  endpoint: string;
  credentials: { accessKeyId: string; secretAccessKey: string };
  client: S3Client;
  /** Creates a bucket. @returns the options of a store in it */
  bucket(name: string): Promise<S3StoreOptions>;
  /** Kills it. */
  [Symbol.asyncDispose](): Promise<void>;
}

// Debian's Python, whose packages include swift: another one may be first in PATH.
const PYTHON = '/usr/bin/python3';
const SCRIPT = path.join(import.meta.dirname, 'swift-server.py');
const CREDENTIALS = { accessKeyId: 'test:tester', secretAccessKey: 'testing' };
const REGION = 'us-east-1';

/** Requests to `BUCKET.s3.test` name their bucket in the host, wherever that name leads. */
export const S3_DOMAIN = 's3.test';

/** @param dir an existing folder; the server stores its data below it, and has what an earlier one has stored there */
export async function startS3Server(dir: string): Promise<TestS3Server> {
  const child = spawn('setpriv', ['--pdeathsig', 'KILL', '--', PYTHON, SCRIPT, path.join(dir, 'swift')], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  child.stderr.on('data', (data: Buffer) => (output = (output + data.toString()).slice(-4096)));
  const ended = once(child, 'close');
  const port = await Promise.race([
    once(createInterface(child.stdout), 'line').then(([line]) => Number(line)),
    ended.then(() => {
      throw new Error(`swift does not start: ${output}`);
    }),
  ]);
  const endpoint = `http://127.0.0.1:${port}`;
  const client = new S3Client({ endpoint, region: REGION, forcePathStyle: true, credentials: CREDENTIALS });
  return {
    endpoint,
    credentials: CREDENTIALS,
    client,
    async bucket(name) {
      await client.send(new CreateBucketCommand({ Bucket: name }));
      return {
        type: 's3',
        bucket: name,
        prefix: 'tests',
        endpoint,
        region: REGION,
        credentials: CREDENTIALS,
        spoolFolder: path.join(dir, 'spool'),
      };
    },
    async [Symbol.asyncDispose]() {
      client.destroy();
      child.kill('SIGKILL');
      await ended;
    },
  };
}
