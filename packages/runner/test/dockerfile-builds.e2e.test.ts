/** Real builds in real micro-VMs. Each takes seconds of emulation, so each test looks at all that its builds show. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { newUuid, type DockerfileRoot } from '@releap/contract';
import { isNightly } from '@releap/testing/repetitions';
import { until } from '@releap/testing/eventually';
import { type Item, sha256, tarOf, writeOciLayout } from '@releap/testing/oci';
import { REGISTRY_USER, startRegistry, type TestRegistry } from '@releap/testing/registry';
import { TEST_CACHE } from '@releap/testing/test-cache';
import type { OpenBlob } from '../src/dockerfile/build-context.ts';
import type { BuildLimits } from '../src/dockerfile/build-limits.ts';
import type { DockerfileBuilds } from '../src/dockerfile/dockerfile-builds.ts';
import { ImageStore, type RootImage } from '../src/image/image-store.ts';
import { Network } from '../src/network/network.ts';
import { ensureBuilderImage, openDockerfileBuilds, packagesDir } from './support/dockerfile-builds.ts';
import { isolateNetwork } from './support/isolated-network.ts';
import { log, testMachines } from './support/machines.ts';

// With the machine's network, which the namespace of the tests has not.
await ensureBuilderImage();
isolateNetwork(fileURLToPath(import.meta.url));

class World implements AsyncDisposable {
  readonly images: ImageStore;
  readonly registry: TestRegistry;
  readonly caches: string;
  readonly home: string;
  readonly #stack: AsyncDisposableStack;
  readonly #blobs = new Map<string, Buffer>();
  /** For the next build. */
  limits: Partial<BuildLimits> = {};

  private constructor(
    stack: AsyncDisposableStack,
    registry: TestRegistry,
    machines: Awaited<ReturnType<typeof testMachines>>,
    network: Network,
  ) {
    this.#stack = stack;
    this.registry = registry;
    this.home = machines.home;
    this.caches = path.join(machines.home, 'build-caches');
    const openBlob: OpenBlob = async (digest) =>
      [this.#blobs.get(digest) ?? Buffer.alloc(0)] as unknown as AsyncIterable<Buffer>;
    const open = (): DockerfileBuilds => {
      const options = { machines: machines.machines, network, images: this.images, openBlob };
      return openDockerfileBuilds(machines.home, options, this.limits);
    };
    this.images = new ImageStore({
      privateHosts: ['loopback'],
      cacheDir: TEST_CACHE,
      packagesDir,
      log,
      buildDockerfile: (root, build) => open().build(root, build),
    });
  }

  static async start(): Promise<World> {
    const stack = new AsyncDisposableStack();
    const folder = await mkdtemp(path.join(tmpdir(), 'releap-dockerfile-'));
    stack.defer(() => rm(folder, { recursive: true, force: true }));
    const registry = stack.use(await startRegistry(path.join(folder, 'registry'), true));
    const layout = path.join(folder, 'busybox');
    await writeOciLayout(layout, [await busyboxLayer(folder)], {
      config: { Env: ['BASE=yes'], Cmd: ['/bin/sh'] },
    });
    registry.push(layout, 'busybox:1');
    const machines = stack.use(await testMachines());
    const network = await Network.open({
      dir: path.join(machines.home, 'network'),
      identity: machines.home,
      listenHost: '127.0.0.1',
      slots: 4,
      withholdMs: 20,
      ahead: 1,
      dnsUpstreams: ['127.0.0.1'],
      log,
    });
    stack.defer(() => network.close());
    const world = new World(stack, registry, machines, network);
    stack.defer(() => world.images.close());
    return world;
  }

  /** Puts a context into the store. */
  async context(items: readonly Item[]): Promise<NonNullable<DockerfileRoot['context']>> {
    const tar = await tarOf(items);
    this.#blobs.set(sha256(tar), tar);
    return { digest: sha256(tar), bytes: tar.length };
  }

  root(text: string, more: Partial<DockerfileRoot> = {}): DockerfileRoot {
    const { username, password } = REGISTRY_USER;
    return {
      type: 'dockerfile',
      project_id: newUuid(),
      dockerfile: { text },
      docker: false,
      credentials: [{ host: this.registry.host, kind: 'basic', username, password }],
      ...more,
    };
  }

  async build(root: DockerfileRoot, signal?: AbortSignal): Promise<{ image: RootImage; output: string }> {
    let output = '';
    const onOutput = (chunk: Buffer): void => void (output += chunk.toString());
    const image = await this.images
      .ensure(root, { rebuild: true, onOutput, signal })
      .catch((error: unknown) => {
        throw Object.assign(error as Error, { output });
      });
    return { image, output };
  }

  /** Why a build fails. */
  async failure(root: DockerfileRoot, signal?: AbortSignal): Promise<string> {
    try {
      await this.build(root, signal);
    } catch (error) {
      return (error as Error).message;
    }
    return assert.fail('the build has not failed');
  }

  vms(): Promise<string[]> {
    return readdir(path.join(this.home, 'vms')).catch(() => []);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#stack.disposeAsync();
  }
}

/** Debian's static busybox with some of its names. */
async function busyboxLayer(folder: string): Promise<Buffer> {
  const deb = (await readdir(packagesDir)).find((name) => name.startsWith('busybox-static_'));
  execFileSync('dpkg-deb', ['--extract', path.join(packagesDir, deb ?? ''), path.join(folder, 'deb')]);
  const found = await readdir(path.join(folder, 'deb'), { recursive: true });
  const program = found.find((name) => /(^|\/)bin\/busybox$/.test(name)) ?? '';
  const names = [
    'sh',
    'cat',
    'echo',
    'ls',
    'mkdir',
    'dd',
    'sleep',
    'test',
    'true',
    'false',
    'grep',
    'id',
    'chmod',
    'rm',
  ];
  return await tarOf([
    ...['bin', 'etc', 'tmp'].map((name): Item => ({ name, type: 'directory', mode: 0o755 })),
    { name: 'bin/busybox', content: await readFile(path.join(folder, 'deb', program)), mode: 0o755 },
    ...names.map((name): Item => ({ name: `bin/${name}`, type: 'symlink', linkname: 'busybox' })),
    { name: 'etc/passwd', content: 'root:x:0:0::/root:/bin/sh\nworker:x:7:7::/:/bin/sh\n' },
    { name: 'etc/group', content: 'root:x:0:\nworker:x:7:\n' },
  ]);
}

function fileOf({ path: image }: RootImage, name: string): string {
  return execFileSync('unsquashfs', ['-cat', image, name], { encoding: 'utf8' });
}

let world: World;
before(async () => {
  world = await World.start();
});
after(() => world[Symbol.asyncDispose]());

describe('a Dockerfile', () => {
  it('becomes a root image, and an unchanged one is built from its layers again', async () => {
    const { host } = world.registry;
    const context = await world.context([
      { name: 'kept.txt', content: 'kept\n' },
      { name: 'ignored.txt', content: 'ignored\n' },
      { name: '.dockerignore', content: 'ignored*\n' },
      {
        name: 'build/Dockerfile',
        content: `ARG TAG=1
FROM ${host}/busybox:$TAG AS made
ARG WORD=default
COPY . /context
RUN --mount=type=cache,target=/cache echo "$WORD $BASE" > /made && echo 1 > /cache/seen && ls -A /context > /list
FROM ${host}/busybox:1
COPY --from=made /made /list /
COPY <<EOF /etc/heredoc
of $HOME
EOF
RUN <<EOF
echo one > /steps
echo two >> /steps
EOF
ENV COLOUR=blue
WORKDIR /srv
USER worker
EXPOSE 80
ENTRYPOINT ["/bin/sh", "-c"]
CMD ["id"]
`,
      },
    ]);
    const root = world.root('', { context, dockerfile: { path: './build/Dockerfile' } });
    const { image, output } = await world.build(root);
    assert.equal(fileOf(image, 'made'), 'default yes\n');
    assert.equal(fileOf(image, 'list'), '.dockerignore\nbuild\nkept.txt\n');
    assert.match(fileOf(image, 'etc/heredoc'), /^of /);
    assert.equal(fileOf(image, 'steps'), 'one\ntwo\n');
    const { entrypoint, cmd, env, user, workingDir, exposedPorts } = image.config;
    assert.deepEqual([entrypoint, cmd, user, workingDir], [['/bin/sh', '-c'], ['id'], 'worker', '/srv']);
    assert.deepEqual(
      [env['COLOUR'], env['BASE'], exposedPorts],
      ['blue', 'yes', [{ port: 80, proto: 'tcp' }]],
    );
    assert.match(output, new RegExp(`fetching the base image ${host}/busybox:1\n`));
    assert.equal(output.split('AS made').length, 2, output);
    assert.ok(!output.includes(REGISTRY_USER.password));
    assert.deepEqual(await world.vms(), []);

    assert.ok(await world.images.has(root));
    assert.equal((await world.images.ensure(root)).digest, image.digest);
    const again = await world.build(root);
    assert.equal(again.image.digest, image.digest);
    assert.match(again.output, /have not changed/);
    assert.deepEqual(await world.vms(), []);

    const { project_id } = root;
    const other = await world.build(
      world.root('', { project_id, context, dockerfile: { path: 'build/Dockerfile' } }),
    );
    assert.equal(other.image.digest, image.digest);
    assert.match(other.output, /every step was cached/);
  });

  it('that fails says in one line which step it was, and why', async () => {
    const { host } = world.registry;
    const from = `FROM ${host}/busybox:1\n`;
    const project_id = newUuid();
    const failure = async (text: string, more: Partial<DockerfileRoot> = {}): Promise<string> =>
      await world.failure(world.root(text, { project_id, ...more }));
    assert.equal(
      await failure(`${from}ENV BEFORE=it\nRUN exit 3\n`),
      'RUN exit 3 (line 3) exited with status 3',
    );
    assert.equal(
      await failure(`${from}COPY nothing /there\n`),
      'COPY nothing /there (line 2): no such file in the context',
    );
    assert.equal(await failure(`${from}RUNN true\n`), 'the Dockerfile has an unknown instruction: RUNN');
    assert.match(
      await failure(`FROM scratch\nCOPY --from=${host}/busybox:none / /\n`),
      /^base image localhost:\d+\/busybox:none: .*no image localhost:\d+\/busybox:none/,
    );
    assert.match(
      await failure(from, { credentials: [] }),
      /^base image localhost:\d+\/busybox:1: .*(?:authori|credential|denied)/i,
    );
    const reason = `the project's credential for ${host} cannot be used: it is damaged: write it again`;
    assert.equal(
      await failure(from, { credentials: [], no_credentials: [{ host, reason }] }),
      `base image ${host}/busybox:1: ${reason}`,
    );
    assert.deepEqual(await world.vms(), []);
  });

  it('is prepared for Docker with its package manager, or fails with what is missing', async () => {
    const { host } = world.registry;
    const project_id = newUuid();
    const prepared = (steps: string): DockerfileRoot =>
      world.root(`FROM ${host}/busybox:1\n${steps}`, { project_id, docker: true });
    assert.match(
      await world.failure(prepared('')),
      /^docker: true needs an image with dockerd, or with one of apt-get, apk, dnf/,
    );
    const manager = (install: string): string => `COPY <<'EOF' /bin/apt-get
#!/bin/sh
echo "$*" >> /log
case "$*" in install*) ${install} ;; esac
EOF
RUN chmod 755 /bin/apt-get && mkdir -p /usr/sbin
USER worker
`;
    if (isNightly()) {
      const failing = manager('echo "E: Unable to locate package docker.io"; exit 100');
      assert.equal(
        await world.failure(prepared(failing)),
        'docker: true could not install Docker with apt-get: E: Unable to locate package docker.io',
      );
    }
    const installing = manager('echo 1 > /usr/sbin/dockerd');
    const { image, output } = await world.build(prepared(installing));
    assert.match(output, /^\[releap\] installing Docker with apt-get$/m);
    assert.deepEqual([image.config.docker, image.config.user], [true, 'worker']);
    assert.match(fileOf(image, 'log'), /^update\ninstall -y --no-install-recommends docker\.io /);
    assert.deepEqual(await world.vms(), []);
  });

  it('whose context leads out of its folder, or has a device, is refused', async () => {
    const text = `FROM scratch\nCOPY . /\n`;
    const escaping = await world.context([{ name: '../escaped', content: 'x' }]);
    assert.match(
      await world.failure(world.root(text, { context: escaping })),
      /^the build context cannot be unpacked: /,
    );
    const device = await world.context([{ name: 'disk', type: 'block-device', devmajor: 8, devminor: 0 }]);
    assert.equal(
      await world.failure(world.root(text, { context: device })),
      'the build context has a device, FIFO or socket: "/disk"',
    );
  });

  it('that takes too much is ended with the limit that it met, and the next one builds', async () => {
    const { host } = world.registry;
    const project_id = newUuid();
    const from = `FROM ${host}/busybox:1\n`;
    const fill = world.root(`${from}RUN dd if=/dev/zero of=/full bs=1M\n`, { project_id });
    world.limits = { diskMib: 512 };
    assert.equal(await world.failure(fill), 'the build ran out of its 512 MiB disk');
    world.limits = { processes: 200 };
    const start = 'sleep 1000 > /dev/null 2>&1 &';
    const forks = world.root(`${from}RUN while :; do ${start} done\n`, { project_id });
    assert.match(await world.failure(forks), /^the build had more than 200 processes at a time: RUN while/);
    // Idle: its time is the host's, and a busy guest would only cost the host as much.
    world.limits = { timeMs: 30_000 };
    const idle = world.root(`${from}RUN sleep 1000\n`, { project_id });
    assert.equal(await world.failure(idle), 'the build ran out of its time of 30 seconds');
    assert.deepEqual(await world.vms(), []);
    world.limits = {};
    await world.build(world.root(`${from}RUN true\n`, { project_id }));
  });

  it('that is cancelled ends with its micro-VM, and its project builds on', async () => {
    const { host } = world.registry;
    const controller = new AbortController();
    const root = world.root(`FROM ${host}/busybox:1\nRUN echo begun; sleep 1000\n`);
    const failed = world.failure(root, controller.signal);
    await until(async () => (await world.vms()).length > 0);
    controller.abort(new Error('cancelled'));
    assert.match(await failed, /cancelled/);
    await until(async () => (await world.vms()).length === 0);
    const { project_id } = root;
    await world.build(world.root(`FROM ${host}/busybox:1\nRUN echo next\n`, { project_id }));
  });
});
