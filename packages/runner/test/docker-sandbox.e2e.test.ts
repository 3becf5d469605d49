/**
 * Containers in a sandbox, by the engine that the agent keeps running, which a real build has installed: minutes of emulation, so only in a
 * nightly run. `test/docker.test.ts` runs a container from the REST API on in each run.
 */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { isNightly } from '@releap/testing/repetitions';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { installDocker, packagesOfDocker } from './support/docker-install.ts';
import { ensureBuilderImage } from './support/dockerfile-builds.ts';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { TestRunner } from './support/sandboxes.ts';
import { SPEC } from './support/sandbox-spec.ts';

// With the machine's network, which the namespace of the tests has not.
const packages = isNightly() ? await packagesOfDocker() : '';
if (isNightly()) await ensureBuilderImage();
isolateNetwork(fileURLToPath(import.meta.url));

const ID = '64646464-2222-4333-8444-555555555555';
/** An image whose only file is a static busybox. */
const IMPORT = `tar -C / -c usr/bin/busybox | docker import -c 'ENTRYPOINT ["/usr/bin/busybox", "sh", "-c"]' - box`;
const DRIVER = "docker info --format '{{.Driver}}'";

describe('a sandbox of an image that was prepared for Docker', { skip: !isNightly() }, () => {
  let runner: TestRunner;
  before(async () => {
    runner = await TestRunner.open(await temporaryFolder('releap-dk-'));
    const { digest } = await installDocker(runner, packages);
    // A machine of the size that build VMs have.
    runner.spec = { ...SPEC, root: { type: 'stored', digest }, vcpus: 2, mem_mib: 1024, ports: [] };
  });
  after(async () => await runner?.dispose());

  it('has containers on its data device, publishes their ports, and gets its engine back', async () => {
    runner.want(ID, 1, 'running', { spec: { ...runner.spec, docker_data_mib: 512 } });
    await runner.reported(1, 'running');
    // Asked before the engine is ready.
    assert.equal(await runner.sh(ID, DRIVER), 'overlay2\n');
    assert.match(await runner.sh(ID, 'grep docker /proc/mounts'), /^\/dev\/vdc \/var\/lib\/docker ext4/m);

    const serve = 'echo served > /index.html; exec /usr/bin/busybox httpd -f -p 80 -h /';
    await runner.sh(ID, IMPORT);
    await runner.sh(ID, `docker run -d --name web -p 8080:80 box '${serve}'`);
    // By the address of the sandbox, the kernel forwards the port; by the loopback address, a process of the engine does.
    const fetch = 'for at in 172.16.0.2 127.0.0.1; do busybox wget -qO- http://$at:8080/; done';
    assert.equal(await runner.sh(ID, fetch), 'served\nserved\n');

    // Which also tells that the engine's log is there.
    const starts = "grep -c 'API listen on /var/run/docker.sock' /var/log/dockerd.log";
    await runner.sh(ID, `pkill -KILL -x dockerd; while test "$(${starts})" != 2; do sleep 0.5; done`);
    assert.match(await runner.sh(ID, 'cat /var/log/dockerd.log'), /^releap: dockerd was ended by SIGKILL$/m);
    assert.equal(await runner.sh(ID, "docker ps -a --format '{{.Names}}'"), 'web\n');
  });

  it('has its containers on its own disk without a data device, and an empty device at each boot', async () => {
    runner.want(ID, 2, 'stopped');
    await runner.reported(2, 'stopped');
    runner.want(ID, 3, 'running');
    await runner.reported(3, 'running');
    assert.match(await runner.sh(ID, 'grep docker /proc/mounts'), /^\/dev\/vdb \/var\/lib\/docker ext4/m);
    assert.equal(await runner.sh(ID, DRIVER), 'overlay2\n');
    await runner.sh(ID, IMPORT);
    const images = 'docker image ls -q | wc -l';
    for (const [generation, docker_data_mib, found] of [
      [4, 512, '0'],
      [6, undefined, '1'],
    ] as const) {
      runner.want(ID, generation, 'stopped');
      await runner.reported(generation, 'stopped');
      const spec = { ...runner.spec, ...(docker_data_mib !== undefined && { docker_data_mib }) };
      runner.want(ID, generation + 1, 'running', { spec });
      await runner.reported(generation + 1, 'running');
      assert.equal((await runner.sh(ID, images)).trim(), found);
    }
    // Its containers are paused with it.
    await runner.sh(ID, "docker run -d --name endless box 'while :; do /usr/bin/busybox sleep 1; done'");
    runner.want(ID, 8, 'paused');
    await runner.reported(8, 'paused');
    runner.want(ID, 9, 'running', { start_from: 'memory' });
    await runner.reported(9, 'running');
    assert.equal(await runner.sh(ID, "docker ps --format '{{.Names}} {{.State}}'"), 'endless running\n');
  });
});
