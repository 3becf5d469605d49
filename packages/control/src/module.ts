import type { Registry } from 'prom-client';
import type { Planes } from './http/planes.ts';
import type { ReconciledKind } from './runners/kind.ts';
import type { UpgradeRouter } from './http/upgrade-router.ts';
import type { PeriodicTask } from './tasks/task.ts';
import type { TeardownStep } from './teardown/step.ts';

/**
 * A part of the control plane: mostly one resource, in a folder of its own. `createModules` lists them; what each gives
 * is wired by `startControl`. docs/adding-a-resource.md shows how to write one.
 */
export interface Module {
  /** The folder's name. */
  readonly name: string;
  /** Adds the module's operations to the planes. */
  routes?(planes: Planes): void;
  /** Adds WebSocket endpoints to the internal listener. */
  upgrades?(router: UpgradeRouter): void;
  /** Disconnects what `upgrades` has let in; called when the server stops, and its listeners wait for it. */
  disconnect?(): void;
  /** Registers metrics of its own, named `releap_…`; docs/observability.md lists them. */
  metrics?(registry: Registry): void;
  /** Work that is repeated. */
  readonly tasks?: readonly PeriodicTask[];
  /** What is done about its resource when a project is deleted. */
  readonly teardown?: readonly TeardownStep[];
  /** Kinds of resources of its own that runners reconcile. */
  readonly kinds?: readonly ReconciledKind[];
}
