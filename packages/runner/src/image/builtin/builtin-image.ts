import type { ImageConfig } from '../image-config.ts';
import type { LayerSource } from '../unpack-layer.ts';

export interface BuiltinContext {
  /** An empty folder of our own; the caller removes it. */
  workDir: string;
  /** Where set-up left Debian packages; absent: they are fetched. */
  packagesDir: string | undefined;
  signal: AbortSignal;
  /** `done` of `total` steps. */
  report: (message: string, done: number, total: number) => void;
}

/** What a maker hands over: the same that a registry would. */
export interface MadeImage {
  /** Bottom first; files below the context's `workDir`. */
  layers: LayerSource[];
  run: ImageConfig;
}

/** An image that a runner makes by itself, from Debian's packages. */
export interface BuiltinImage {
  name: string;
  /** Names what the image would be made from now; another value than last time means: make it again. */
  recipe(packagesDir: string | undefined): Promise<string>;
  /** @throws ImageError */
  make(context: BuiltinContext): Promise<MadeImage>;
}

export const EMPTY_RUN_CONFIG: ImageConfig = {
  entrypoint: [],
  cmd: [],
  env: {},
  user: '',
  workingDir: '',
  exposedPorts: [],
  stopSignal: '',
};
