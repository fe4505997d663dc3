import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    testTimeout: 30_000,
    // Two cores are enough for everybody.
    maxWorkers: 2,
  },
});
