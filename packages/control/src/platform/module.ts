import type { FastifyInstance } from 'fastify';
import type { Registry } from 'prom-client';
import type { ClientGuards, Planes } from './http/planes.ts';
import type { ReconciledKind } from './reconciled-kind.ts';
import type { UpgradeRouter } from './http/upgrade-router.ts';
import type { Purge } from './retention/purge.ts';
import type { PeriodicTask } from './work/task.ts';
import type { TeardownStep } from './teardown/step.ts';

/**
 * A part of the control plane, usually one resource in its own folder. `createModules` lists the modules and
 * `startControl` wires them. docs/adding-a-resource.md shows how to write one.
 */
export interface Module {
  /** The folder's name. */
  readonly name: string;
  /** Adds the module's operations to the planes. */
  routes?(planes: Planes): void;
  /** Adds routes to the listener for clients that are not operations of a plane, in a scope of their own. */
  clientRoutes?(scope: FastifyInstance, guards: ClientGuards): void;
  /** Adds WebSocket endpoints to the internal listener. */
  upgrades?(router: UpgradeRouter): void;
  /** The server is about to stop: takes no new work that lasts. Resolves when what is in progress has ended. */
  drain?(): Promise<void>;
  /** Disconnects the clients of `upgrades`; called when the server stops, and its listeners wait for it. */
  disconnect?(): void;
  /** Registers the module's metrics, named `releap_…`; docs/observability.md lists them. */
  metrics?(registry: Registry): void;
  /** Periodic work. */
  readonly tasks?: readonly PeriodicTask[];
  /** Steps that remove the resource when its project is deleted. */
  readonly teardown?: readonly TeardownStep[];
  /** What is removed some time after it has ended. */
  readonly purges?: readonly Purge[];
  /** Resource kinds that runners reconcile for this module. */
  readonly kinds?: readonly ReconciledKind[];
}
