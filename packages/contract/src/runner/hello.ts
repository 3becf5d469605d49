/** The handshake of a link: the runner's identity and capabilities, and control's response. */
import { Type, type Static } from 'typebox';
import { DeclaredClasses } from '../wire/compute/hardware-class.ts';
import { Count, Name, text, Uuid } from '../wire/platform/fields.ts';
import { LINK_NAMES_MAX } from './link.ts';

const names = Type.Array(Name, { maxItems: LINK_NAMES_MAX });

/** The resources of a machine. */
export const RunnerFacts = Type.Object({
  arch: Type.Enum(['amd64', 'arm64'] as const),
  cores: Type.Number({ exclusiveMinimum: 0 }),
  mem_mib: Count,
  disk_mib: Count,
  accelerator: Type.Enum(['kvm', 'tcg'] as const),
  /** Model that the guests see, and the VMM with its version: a full snapshot can only be restored on the same. */
  cpu_model: text(200),
  vmm: text(200),
  /** VMMs that full snapshots may have been taken with; absent for `vmm` alone. */
  restorable_vmms: Type.Optional(Type.Array(text(200), { maxItems: 64 })),
  /** Digest of the kernel, agent, system disk and devices of new guests. */
  guest: Type.Optional(text(64)),
  gpus: Count,
  /** Name of the processor, as Linux has it. */
  processor: Type.Optional(text(200)),
  /** What the operator calls the machine. */
  name: Type.Optional(text(64)),
  classes: Type.Optional(DeclaredClasses),
});
export type RunnerFacts = Static<typeof RunnerFacts>;

/** First message of a runner, at every connection. */
export const HelloMessage = Type.Object({
  type: Type.Literal('hello'),
  /** The newest version of the protocol that the runner speaks. */
  protocol: Type.Integer({ minimum: 1 }),
  /** Stable id that the runner keeps in its home folder. */
  runner_id: Uuid,
  /** The deployment that the runner belongs to; absent before its first `welcome`. */
  deployment_id: Type.Optional(Uuid),
  region: text(64),
  /**
   * The runner's data server: `https://host:port`, with a certificate that names the runner, or `unix:/absolute/path.sock` for this
   * machine alone, unless the runner has `REVERSE_CAPABILITY`. Clients in the runner's own home use its Unix socket in any case.
   */
  data_url: Type.String({ maxLength: 512, pattern: '^(https?://|unix:/)' }),
  facts: RunnerFacts,
  /** Optional features of the protocol that the runner has. */
  capabilities: names,
  /** Kinds of resources that it reconciles. */
  kinds: names,
});
export type HelloMessage = Static<typeof HelloMessage>;

/** Control's response, before any other message. */
export const WelcomeMessage = Type.Object({
  type: Type.Literal('welcome'),
  /** The negotiated version: at most the runner's. */
  protocol: Type.Integer({ minimum: 1 }),
  deployment_id: Uuid,
  /** Optional features of the protocol that control has. */
  capabilities: names,
  /** Kinds that control reconciles. A resource that `sync` does not name is an orphan only if its kind is one of these. */
  kinds: names,
});
export type WelcomeMessage = Static<typeof WelcomeMessage>;
