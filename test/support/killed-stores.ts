/** A sandbox that writes to a mounted object store while processes are killed. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { CreateBucketCommand, GetObjectCommand, PutObjectCommand } from '@aws-sdk/client-s3';
import { eventually } from '@releap/testing/eventually';
import { startS3Server } from '@releap/testing/s3-server';
import type { Service } from '@releap/testing/service';

const BUCKET = 'killed';
const FILES = 12;
/** A request that met the kill may be silent until its deadline, is repeated three times, and the next attempt waits longer. */
const UPLOAD_MS = 300_000;

export interface KilledStores extends AsyncDisposable {
  id: string;
  /** Pid of the host's store proxy. */
  proxyPid: () => Promise<number>;
  /** Writes a file every 100 ms, and runs `kill` meanwhile. Resolves when all of them are in the bucket. */
  writesSurvive: (name: string, kill: () => Promise<unknown>) => Promise<void>;
  /** Whether the mount at this path has the objects of the bucket. */
  reads: (path: string) => Promise<boolean>;
  mount: (path: string) => Promise<number>;
  unmount: () => Promise<number>;
}

/** @param folder of the S3 server */
export async function startKilledStores(service: Service, folder: string): Promise<KilledStores> {
  const s3 = await startS3Server(folder);
  await s3.client.send(new CreateBucketCommand({ Bucket: BUCKET }));
  await s3.client.send(new PutObjectCommand({ Bucket: BUCKET, Key: 'known', Body: 'yes' }));
  const { accessKeyId, secretAccessKey } = s3.credentials;
  for (const [name, value] of [
    ['S3_ID', accessKeyId],
    ['S3_KEY', secretAccessKey],
  ])
    assert.equal((await service.call('PUT', `/secrets/${name}`, { value })).status, 204);
  for (const name of ['killed', 'other']) {
    const { status, body } = await service.call('POST', '/object-stores', {
      name,
      bucket: BUCKET,
      access_key_secret: 'S3_ID',
      secret_key_secret: 'S3_KEY',
      endpoint: s3.endpoint,
      path_style: true,
    });
    assert.equal(status, 200, JSON.stringify(body));
  }
  const { id } = await service.create({
    image: 'busybox',
    cpu: 1,
    mem_mib: 512,
    scratch_mib: 64,
    object_store_mounts: [{ object_store: 'killed', mount_path: '/mnt/killed' }],
  });
  const read = async (Key: string): Promise<string | undefined> => {
    try {
      const { Body } = await s3.client.send(new GetObjectCommand({ Bucket: BUCKET, Key }));
      return await Body?.transformToString();
    } catch {
      return undefined;
    }
  };
  return {
    id,
    async proxyPid() {
      const record = join(service.home, 'runner/network/stores/stores.json');
      return (JSON.parse(await readFile(record, 'utf8')) as { pid: number }).pid;
    },
    async writesSurvive(name, kill) {
      // The gateway and the runner, which a command needs, may be what is killed.
      const { exitCode } = await service.exec(
        id,
        `cd /mnt/killed && (i=0; while [ $i -lt ${FILES} ]; do echo ${name} $i > ${name}-$i || echo $i >> /tmp/failed; i=$((i+1)); sleep 0.1; done) > /dev/null 2>&1 &`,
      );
      assert.equal(exitCode, 0);
      await kill();
      const { result } = await eventually('the writes', async () => {
        const found = await service.exec(id, `ls /mnt/killed/${name}-${FILES - 1} /tmp/failed 2>&1`);
        return /^\/(mnt|tmp)/m.test(found.result) ? found : undefined;
      });
      assert.match(result, /^ls: \/tmp\/failed: No such file/m, 'every write has succeeded');
      for (let file = 0; file < FILES; file++)
        await eventually(
          `the upload of ${name}-${file}`,
          async () => (await read(`${name}-${file}`)) === `${name} ${file}\n`,
          UPLOAD_MS,
        );
    },
    async reads(path) {
      const { result } = await eventually('exec', () => service.exec(id, `cat ${path}/known`));
      return result === 'yes';
    },
    async mount(path) {
      const body = { object_store: 'other', mount_path: path };
      return (await service.call('POST', `/vms/${id}/object-store-mounts`, body)).status;
    },
    async unmount() {
      return (await service.call('DELETE', `/vms/${id}/object-store-mounts/other`)).status;
    },
    async [Symbol.asyncDispose]() {
      await s3[Symbol.asyncDispose]();
    },
  };
}
