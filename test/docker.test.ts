/**
 * Containers in a sandbox, from the REST API on. In a nightly run the image is posted with `docker: true`, and what a build in a
 * micro-VM makes of it boots; that takes minutes of emulation. Otherwise the image has the mark of such a build already.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { dockerRegistry } from '@releap/testing/docker-image';
import { eventually } from '@releap/testing/eventually';
import { isNightly } from '@releap/testing/repetitions';
import type { Service } from '@releap/testing/service';
import { sharedService } from '@releap/testing/shared-service';

/** A machine of the size that build VMs have. */
const MACHINE = { cpu: 1, vcpus: 2, mem_mib: 1024, scratch_mib: 512 };
const BUILD_MS = 30 * 60_000;
const START_MS = 10 * 60_000;
/** An image whose only file is a static busybox. */
const IMPORT = `tar -C / -c usr/bin/busybox | docker import -c 'ENTRYPOINT ["/usr/bin/busybox", "sh", "-c"]' - box`;

let service: Service;
let registry: Awaited<ReturnType<typeof dockerRegistry>>;
before(async () => {
  registry = await dockerRegistry();
  service = await sharedService();
});
after(async () => {
  await service?.[Symbol.asyncDispose]();
  await registry?.[Symbol.asyncDispose]();
});

/** What a create of a sandbox takes as its image. */
async function image(): Promise<string> {
  if (!isNightly()) return registry.ref;
  const source = { type: 'registry', ref: registry.ref };
  const posted = await service.call<{ job_id: string }>('POST', '/images', {
    name: 'engine',
    source,
    docker: true,
  });
  assert.equal(posted.status, 200, JSON.stringify(posted.body));
  await eventually(
    'the image is prepared',
    async () => {
      const { body } = await service.call('GET', `/jobs/${posted.body.job_id}`);
      assert.notEqual(body['status'], 'failed', String(body['error']));
      return body['status'] === 'done';
    },
    BUILD_MS,
  );
  return 'engine';
}

test('a sandbox of an image for Docker runs a container', async () => {
  const { id } = await service.create({ ...MACHINE, image: await image(), docker_data_mib: 512 });
  const sh = async (command: string): Promise<string> => {
    const { exitCode, result } = await service.exec(id, command);
    assert.equal(exitCode, 0, `${command}: ${result}`);
    return result;
  };
  // Asked before the engine is ready. Each takes seconds of emulation, and on a busy machine minutes, which bound a request.
  // On a busy machine dockerd gives up on its containerd, which has 15 seconds to start, ends, and is started again.
  await eventually(
    'the engine serves',
    async () => {
      const { exitCode, result } = await service.exec(id, `${IMPORT} > /dev/null`);
      if (/Cannot connect to the Docker daemon/.test(result)) throw new Error(result);
      assert.equal(exitCode, 0, result);
      return true;
    },
    START_MS,
  );
  const run = 'docker run --rm --network none box "echo hello; /usr/bin/busybox ls /sys/class/net"';
  assert.equal((await sh(run)).trim(), 'hello\nlo');
  assert.match(await sh('ls /var/lib/docker'), /^overlay2$/m);
  assert.match(await sh('grep docker /proc/mounts'), /^\/dev\/vdc \/var\/lib\/docker ext4/m);
  await service.remove(id);
});
