/** Folders and hardware of a host, and its logs. */
import { ClassSlug, IMAGE_CACHE_MIB } from '@releap/contract';
import { Type } from 'typebox';
import { AbsolutePath, HttpUrl, Positive, variable } from './variable.ts';

export const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'] as const;

export const WHERE_THINGS_ARE = {
  RELEAP_HOME: variable({
    schema: AbsolutePath,
    default: '/var/lib/releap',
    description: 'State: database, sandboxes, logs, `bootstrap.json`. One service a folder.',
    group: 'Where things are',
  }),
  RELEAP_CACHE: variable({
    schema: AbsolutePath,
    defaultText: '`$RELEAP_HOME/cache`',
    description:
      'Folder of the cache: root images, templates, empty disks. It can be rebuilt, and several services may share it.',
    group: 'Where things are',
  }),
} as const;

const hardwareClass = (what: string) =>
  variable({
    schema: ClassSlug,
    defaultText: 'none, or the one that the operator gives this machine',
    description:
      `${what} that this machine has: the slug of a class that the operator has defined, as \`rlp class\` lists them ` +
      '([scheduling.md](scheduling.md#classes-of-hardware)). An unknown one is logged, and the machine counts as one without a class.',
    group: 'This machine',
  });

export const THIS_MACHINE = {
  RELEAP_HOST_NAME: variable({
    schema: Type.String({
      pattern: '^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$',
      expected: 'at most 64 letters, digits and . _ -, beginning with a letter or digit',
    }),
    defaultText: 'the name of the machine',
    description:
      'What `rlp host ls` calls this machine, unless the operator renames it (`rlp host rename`). Its id stays when it changes.',
    group: 'This machine',
  }),
  RELEAP_CORES: variable({
    schema: Positive,
    defaultText: 'what the machine has',
    unit: 'cores',
    description: 'Cores that this machine offers to sandboxes.',
    group: 'This machine',
  }),
  RELEAP_MEMORY_MIB: variable({
    schema: Positive,
    defaultText: 'what the machine has, less 1 GiB (a quarter of a machine with less than 4 GiB)',
    unit: 'MiB',
    description:
      'Memory that this machine offers to sandboxes. Whatever is offered, all micro-VMs together have at most the default.',
    group: 'This machine',
  }),
  RELEAP_DISK_MIB: variable({
    schema: Positive,
    defaultText: 'what is free below `RELEAP_HOME`',
    unit: 'MiB',
    description: 'Disk that this machine offers to sandboxes.',
    group: 'This machine',
  }),
  RELEAP_CPU_TYPE: hardwareClass('CPU type'),
  RELEAP_NETWORK_CLASS: hardwareClass('Network class'),
  RELEAP_DISK_CLASS: hardwareClass('Disk class'),
  RELEAP_SANDBOX_DISK_MIB_S: variable({
    schema: Type.Integer({ minimum: 10, maximum: 1_000_000 }),
    defaultText: 'unlimited',
    unit: 'MiB/s',
    description:
      'What a sandbox may read from the disk of this machine each second, and what it may write; the same again for each volume that it mounts. Sandboxes that start afterwards have it. Needs control groups of version 2 with the io controller, and `RELEAP_HOME` and `RELEAP_CACHE` on file systems with a block device of their own (XFS, ext4; not btrfs, ZFS, overlay); otherwise the machine does not start.',
    group: 'This machine',
  }),
  RELEAP_SANDBOX_DISK_IOPS: variable({
    schema: Type.Integer({ minimum: 100, maximum: 10_000_000 }),
    defaultText: 'unlimited',
    unit: 'operations/s',
    description: 'As `RELEAP_SANDBOX_DISK_MIB_S`, in read and write operations.',
    group: 'This machine',
  }),
  RELEAP_GUEST_KERNEL: variable({
    schema: AbsolutePath,
    defaultText: "the distribution's",
    description:
      "Kernel of the guests for x86-64: a bzImage (`vmlinuz`) or an ELF `vmlinux` of the operator's own, for example one built for paravirtual KVM. With huge pages (`CONFIG_HUGETLBFS`). It is tried like the default one and gets templates of its own. `npm start` prepares it; sandboxes that were made with another kernel keep theirs until they start anew.",
    group: 'This machine',
  }),
  RELEAP_GUEST_MODULES: variable({
    schema: AbsolutePath,
    defaultText: 'none: what guests need is built into the kernel',
    description:
      'Folder with the modules of `RELEAP_GUEST_KERNEL`, such as `/lib/modules/VERSION`. Needed: ' +
      'virtio_mmio, virtio_console, virtio_blk, virtio_net, virtio-rng, squashfs, overlay.',
    group: 'This machine',
  }),
  RELEAP_ACCELERATOR: variable({
    schema: Type.Enum(['auto', 'kvm', 'tcg'] as const),
    default: 'auto',
    description:
      'How guests are executed. `auto`: by KVM if a trial micro-VM boots, is saved, restored, paused and resumed under it, else by the emulator, about ten times slower. `kvm`: this machine is not ready until that succeeds; it is tried every 30 seconds. `tcg`: by the emulator, and KVM is not tried. Memory that was saved with one accelerator is kept, and can be resumed only with it.',
    group: 'This machine',
  }),
  RELEAP_CPU_MODEL: variable({
    schema: Type.String({ pattern: '^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$' }),
    default: 'host',
    description:
      'Processor that guests see under KVM: `host`, or a model of QEMU with its version, such as `Cascadelake-Server-v5` or `EPYC-Milan-v2`. With `host`, memory of paused sandboxes and full snapshots can be resumed only with the same processor, microcode and kernel; with a named model on every host that has the same setting, vendor and size of physical addresses. A host that lacks a feature of the model does not start, and names it. Emulated guests have one processor everywhere.',
    group: 'This machine',
  }),
  RELEAP_KEEP_SANDBOXES: variable({
    schema: Type.Integer({ minimum: 0, maximum: 1 }),
    default: 0,
    description:
      '1: at SIGTERM the all-in-one service leaves its sandboxes running, and the next start takes them over, as `releap runner` does at any signal. 0, and at Ctrl-C: they end with it.',
    group: 'This machine',
  }),
  RELEAP_WARM_POOL: variable({
    schema: Type.Integer({ minimum: 0, maximum: 256 }),
    default: 2,
    unit: 'micro-VMs',
    description:
      'Minimum size of the warm pool: restored micro-VMs of the default size that wait for a create, and one VMM for forks. It grows with demand, also for other sizes. Creates, starts and forks that use one are faster; 0 disables the pool.',
    group: 'This machine',
  }),
  RELEAP_WARM_POOL_MEMORY_MIB: variable({
    schema: Type.Integer({ minimum: 0 }),
    defaultText: 'an eighth of what the machine has',
    unit: 'MiB',
    description:
      'Most memory of the warm pool, as proportional set size. The pool is emptied while the machine has less than 1 GiB available.',
    group: 'This machine',
  }),
  RELEAP_IMAGE_CACHE_MIB: variable({
    schema: Positive,
    default: IMAGE_CACHE_MIB.images,
    unit: 'MiB',
    description:
      'Root images kept in the cache; beyond that the least recently used ones are removed, except those that are in use ' +
      'or cannot be fetched again.',
    group: 'This machine',
  }),
  RELEAP_LAYER_CACHE_MIB: variable({
    schema: Type.Integer({ minimum: 0, maximum: 100_000_000 }),
    default: IMAGE_CACHE_MIB.layers,
    unit: 'MiB',
    description: 'Unpacked layers kept in the cache for other images that have them.',
    group: 'This machine',
  }),
  RELEAP_QUARANTINE_DAYS: variable({
    schema: Type.Integer({ minimum: 0, maximum: 3650 }),
    default: 7,
    unit: 'days',
    description:
      'How long disks, memory, snapshots and copies of volumes that the control plane no longer names stay in `runner/quarantine`; 0 keeps them until the operator removes them.',
    group: 'This machine',
  }),
  RELEAP_VOLUME_COMMIT_S: variable({
    schema: Type.Integer({ minimum: 1, maximum: 86_400 }),
    default: 30,
    unit: 'seconds',
    description:
      'How often changes of volumes are committed to the store while sandboxes of this machine use them. They are also committed when the last sandbox ends, and on demand. What is not committed is lost with this machine.',
    group: 'This machine',
  }),
  RELEAP_BUILDS: variable({
    schema: Type.Integer({ minimum: 0, maximum: 64 }),
    default: 1,
    unit: 'builds',
    description:
      'How many Dockerfiles are built at a time, each in a micro-VM. 0: this machine builds none. The memory of a build that runs is taken from what sandboxes are promised.',
    group: 'This machine',
  }),
  RELEAP_BUILD_CPUS: variable({
    schema: Type.Integer({ minimum: 1, maximum: 64 }),
    default: 2,
    unit: 'CPUs',
    description: 'Virtual CPUs of a build. Beside busy sandboxes it weighs a quarter of them.',
    group: 'This machine',
  }),
  RELEAP_BUILD_MEMORY_MIB: variable({
    schema: Type.Integer({ minimum: 512, maximum: 1024 * 1024 }),
    default: 2048,
    unit: 'MiB',
    description: 'Memory of a build. A build waits until the machine has it.',
    group: 'This machine',
  }),
  RELEAP_BUILD_DISK_MIB: variable({
    schema: Type.Integer({ minimum: 1024, maximum: 1024 * 1024 }),
    default: 10 * 1024,
    unit: 'MiB',
    description:
      'Disk of a build, with the layer cache of its project. The file on the machine is sparse. Another size discards the caches.',
    group: 'This machine',
  }),
  RELEAP_BUILD_MINUTES: variable({
    schema: Type.Integer({ minimum: 1, maximum: 1440 }),
    default: 30,
    unit: 'minutes',
    description: 'Longest time of a build, from when it is its turn.',
    group: 'This machine',
  }),
  RELEAP_BUILD_CACHE_MIB: variable({
    schema: Type.Integer({ minimum: 0 }),
    default: 20 * 1024,
    unit: 'MiB',
    description:
      'Most disk space of the layer caches of all projects. The least recently used are removed; one that no build has used for 7 days is removed, too.',
    group: 'This machine',
  }),
} as const;

export const TRACES = {
  OTEL_EXPORTER_OTLP_ENDPOINT: variable({
    schema: HttpUrl,
    defaultText: 'none: traces are off, and nothing of them is loaded',
    description:
      'Base URL of an OpenTelemetry collector, to which control servers, runners and gateways send traces over OTLP/HTTP, as ' +
      '`http://collector:4318` ([observability.md](observability.md#traces)).',
    group: 'Traces',
  }),
  OTEL_EXPORTER_OTLP_HEADERS: variable({
    schema: Type.String({ maxLength: 8_192 }),
    secret: true,
    description: 'Headers of these requests, as `name=value,name=value`: credentials of the collector.',
    group: 'Traces',
  }),
  OTEL_TRACES_SAMPLER_ARG: variable({
    schema: Type.Number({ minimum: 0, maximum: 1 }),
    default: 1,
    description:
      'Share of the requests whose traces are recorded. A request with a `traceparent` is recorded if that says so.',
    group: 'Traces',
  }),
} as const;

export const LOG = {
  RELEAP_LOG_LEVEL: variable({
    schema: Type.Enum(LOG_LEVELS),
    default: 'info',
    description: 'Least severe messages that are logged.',
    group: 'Log',
  }),
  RELEAP_LOG_FILE_MIB: variable({
    schema: Type.Integer({ minimum: 1, maximum: 10_000 }),
    default: 16,
    unit: 'MiB',
    description:
      'Size at which a log file in `$RELEAP_HOME/log` is rotated. One older file per process is kept.',
    group: 'Log',
  }),
} as const;
